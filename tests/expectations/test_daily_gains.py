"""The suite of daily-gains passes a good result, and one planted defect turns one check red."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

DDL = (
    "ticker string, day string, open decimal(8,2), close decimal(8,2), lowest decimal(8,2), highest decimal(8,2), "
    "gain_percent decimal(16,4)"
)


def day(**changes: Any) -> Row:
    row: dict[str, Any] = {
        "ticker": "IBM", "day": "2013-03-01", "open": "30.00", "close": "29.00", "lowest": "28.50", "highest": "31.00",
        "gain_percent": "-3.3333", **changes,
    }  # fmt: skip
    texts = ("ticker", "day")
    return tuple(v if k in texts or v is None else Decimal(v) for k, v in row.items())


FREE = day(ticker="FB", open="0", close="1", lowest="0", highest="1", gain_percent=None)
GOOD: list[Row] = [day(), day(day="2013-03-02", close="30.00", gain_percent="0"), FREE]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "daily_gains", GOOD, DDL, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


@pytest.mark.parametrize(
    ("expected", "row"),
    [
        ("key unique", {"day": "2013-03-01"}),
        ("day readable", {"day": "2013-3-1"}),
        ("lowest in range", {"lowest": "-0.01"}),
        ("open between lowest and highest", {"lowest": "30.01", "close": "30.50", "gain_percent": "1.6667"}),
        ("close between lowest and highest", {"lowest": "29.01"}),
        ("gain null only if open is 0", {"gain_percent": None}),
        ("gain from open to close", {"gain_percent": "-3.3331"}),
    ],
)
def test_a_defect_is_found(spark: SparkSession, tmp_path: Path, expected: str, row: dict[str, Any]) -> None:
    rows = [*GOOD, day(**{"day": "2013-03-03", **row})]
    assert red(check(spark, tmp_path, "daily_gains", rows, DDL)) == {expected}


def test_a_field_that_is_not_there_is_found(spark: SparkSession, tmp_path: Path) -> None:
    names = ("ticker", "day", "open", "close", "lowest", "highest")
    rows = [*GOOD, *[day(**{"ticker": name, name: None}) for name in names]]
    verdict = check(spark, tmp_path, "daily_gains", rows, DDL)
    assert red(verdict) == {f"{name} not null" for name in names}
    assert {result.unexpected for result in verdict.results if result.outcome == "failed"} == {1}


def test_nothing_another_schema_and_another_volume_are_found(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "daily_gains", [], DDL)) == {"not empty"}
    other = DDL.replace("gain_percent decimal(16,4)", "gain_percent decimal(16,5)")
    assert red(check(spark, tmp_path, "daily_gains", GOOD, other)) == {"schema"}
    assert red(check(spark, tmp_path, "daily_gains", GOOD, DDL, live_rows=100)) == {"volume against live"}
