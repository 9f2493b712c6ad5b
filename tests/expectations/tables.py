"""Results written by hand, and a way to run a suite on them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from expectations.gate import check_rows
from expectations.suites import SuiteInputs, checks_of
from expectations.verdict import GateRequest, Verdict
from pipelines.settings import Settings

Row = tuple[Any, ...]

STOCK_STATS_DDL = (
    "ticker string, window_start string, lowest_ask decimal(8,2), trades bigint, average_ask decimal(12,6)"
)
WORD_COUNT_DDL = "word string, count bigint"
LARGE_ORDERS_DDL = (
    "customer string, order_id string, sales_person string, amount decimal(14,2), ordered_at string, "
    "topic string, partition int, offset bigint"
)


def start(second: int) -> str:
    return f"2013-03-01T14:30:{second:02}Z"


def window(ticker: str, second: int, trades: int | None, lowest: str = "10.50", average: str = "10.750000") -> Row:
    return (ticker, start(second), Decimal(lowest), trades, Decimal(average))


# AAPL: two asks in second 10, one in second 13; nothing until one in second 30. MSFT: one ask in second 10.
STOCK_STATS: list[Row] = [
    *[window("AAPL", second, 2) for second in (6, 7, 8)],
    *[window("AAPL", second, 3) for second in (9, 10)],
    *[window("AAPL", second, 1) for second in (11, 12, 13)],
    *[window("AAPL", second, 1) for second in (26, 27, 28, 29, 30)],
    *[window("MSFT", second, 1) for second in (6, 7, 8, 9, 10)],
]

WORD_COUNT: list[Row] = [("lambda", 3), ("expression", 7), ("__init__", 1), ("2", 2)]


def order(offset: int, amount: str = "10000.01", **changes: Any) -> Row:
    row = {
        "customer": "c1",
        "order_id": f"o{offset}",
        "sales_person": "ann",
        "amount": Decimal(amount),
        "ordered_at": "2024-01-01T00:00:00.000Z",
        "topic": "orders",
        "partition": 0,
        "offset": offset,
    }
    return tuple({**row, **changes}.values())


LARGE_ORDERS: list[Row] = [order(1), order(2, "99999.99"), order(2, partition=1), order(3, customer=None)]


def request(docs_dir: Path, suite: str = "stock_stats", **changes: Any) -> GateRequest:
    made: dict[str, Any] = {
        "suite": suite,
        "release": f"{suite.replace('_', '-')}.v2",
        "generation": 1,
        "topic": f"{suite.replace('_', '-')}.v2.g1",
        "end": {0: 100},
        "key": ("ticker", "window_start"),
        "schema_ddl": STOCK_STATS_DDL,
        "table": True,
        "live_rows": None,
        "docs_dir": docs_dir,
        "settings": Settings(),
        **changes,
    }
    return GateRequest(**made)


def check(
    spark: SparkSession, docs_dir: Path, suite: str, rows: Sequence[Row], ddl: str, *, docs: bool = False, **inputs: Any
) -> Verdict:
    """The verdict of `suite` on `rows`. `docs`: it has a page in `docs_dir`."""
    made = SuiteInputs(**{"app_settings": {}, **inputs})
    # as an Arrow table, the rows are part of each query's plan: no query has to read them
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    columns = to_arrow_schema(schema, timestamp_utc=False)
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=columns)
    frame = spark.createDataFrame(table, schema)
    return check_rows(frame, checks_of(suite, made), request(docs_dir, suite), docs=docs)


def red(verdict: Verdict) -> set[str]:
    """Names of the checks that failed; none may be errored."""
    assert verdict.errored == 0, verdict.failures
    return {result.name for result in verdict.results if result.outcome == "failed"}
