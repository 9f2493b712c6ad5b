"""Records to rows and back: malformed records are set apart with their reason, and deleted keys become tombstones."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.engine.frames import MALFORMED, delay_of, observed, parse
from pipelines.engine.results import applied, serialized
from pipelines.errors import BadUsage
from pipelines.model import AppendStream, Json, Raw, Stream, Table, Text
from pipelines.model.app import App, Result, Value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120), pytest.mark.usefixtures("compiled")]

RAW = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
TRADE = Json("side string, price double not null")
KEYED, GOOD = b"AAPL", b'{"side": "ask", "price": 1.5}'


@pytest.mark.parametrize(
    ("value", "records", "reasons"),
    [
        (
            TRADE,
            [
                (KEYED, GOOD),
                (KEYED, b'{"price": 1.5, "more": 1}'),
                # Spark takes it as its text
                (KEYED, b'{"side": 5, "price": 1.5}'),
                (KEYED, b'{"side": "ask", "pri'),
                (KEYED, b'{"side": "ask", "price": "much"}'),
                (KEYED, b'{"side": "ask"}'),
                (KEYED, None),
                (None, GOOD),
            ],
            # which field does not fit, `misfit` finds out
            [None, None, None, "value", "value", "field price is missing", "the value is null", "the key is null"],
        ),
        (Text(), [(KEYED, b"good"), (KEYED, b"\xff bad"), (KEYED, None), (None, b"good")],
         [None, "the value is not UTF-8", "the value is null", "the key is null"]),
        (Raw(), [(KEYED, b"\xff good"), (KEYED, None)], [None, "the value is null"]),
    ],
)  # fmt: skip
def test_malformed_records_become_dead_letters_unchanged(
    spark: SparkSession, value: Value, records: list[tuple[bytes | None, bytes | None]], reasons: list[str | None]
) -> None:
    at = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    rows = [(key, body, "trades", 0, offset, at) for offset, (key, body) in enumerate(records)]
    parsed = parse(spark.createDataFrame(rows, RAW), Stream(topic="trades", value=value, key="ticker string"))
    found = sorted(parsed.collect(), key=lambda row: int(row["offset"]))
    for row, (key, body), reason in zip(found, records, reasons, strict=True):
        letter = row[MALFORMED]
        assert (letter is None) is (reason is None), (body, letter)
        if reason is not None:
            assert reason in letter["reason"]
            assert (letter["topic"], letter["partition"], letter["offset"]) == ("trades", 0, row["offset"])
            assert (letter["key"], letter["value"]) == (key, body)
    good = [number for number, reason in enumerate(reasons) if reason is None]
    assert sorted(row["offset"] for row in observed(parsed, "trades").collect()) == good


def test_a_variant_tells_text_from_other_values(spark: SparkSession) -> None:
    at = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    values = ('{"side": "5"}', '{"side": 5}', '{"side": {"a": "5"}}', '{"side": null}', "{}")
    rows = [(None, value.encode(), "trades", 0, offset, at) for offset, value in enumerate(values)]
    parsed = parse(spark.createDataFrame(rows, RAW), Stream(topic="trades", value=Json("side variant")))
    text = parsed.where("schema_of_variant(side) = 'STRING'")
    assert text.selectExpr("offset", "variant_get(side, '$', 'string')").collect() == [(0, "5")]


def app_of(result: Result) -> App:
    return App(name="odd", inputs={}, results={"": result}, function=lambda settings: None)


ROWS = [("AAPL", "ask", 1.5, "trades", 0, 7), ("IBM", None, 2.5, "trades", 1, 8), ("TSLA", None, None, "trades", 1, 9)]
COLUMNS = "ticker string, side string, price double, topic string, partition int, offset long"


def written(spark: SparkSession, result: Result, *left_out: str) -> dict[str, tuple[Any, str | None]]:
    """Ticker -> value (None: a tombstone) and source of each row."""
    rows = serialized(app_of(result), spark.createDataFrame(ROWS, COLUMNS).drop(*left_out)).collect()
    return {
        json.loads(row["key"])["ticker"]: (row["value"] and json.loads(row["value"]), row["source"]) for row in rows
    }


def test_a_row_of_a_table_without_values_is_a_tombstone(spark: SparkSession) -> None:
    assert written(spark, Table(key=("ticker",)), "topic", "partition", "offset") == {
        "AAPL": ({"side": "ask", "price": 1.5}, None),
        # null fields are written: a row without them would have another schema
        "IBM": ({"side": None, "price": 2.5}, None),
        "TSLA": (None, None),
    }


def test_a_row_of_a_stream_names_its_record_and_is_never_a_tombstone(spark: SparkSession) -> None:
    assert written(spark, AppendStream(key=("ticker",))) == {
        "AAPL": ({"side": "ask", "price": 1.5}, "trades:0:7"),
        "IBM": ({"side": None, "price": 2.5}, "trades:1:8"),
        "TSLA": ({"side": None, "price": None}, "trades:1:9"),
    }


def several(spark: SparkSession, columns: str, *rows: Any) -> DataFrame:
    """The records of an app with a table `counts` by k and a stream `alerts`."""
    results: dict[str, Result] = {"counts": Table(key=("k",)), "alerts": AppendStream()}
    app = App(name="odd", inputs={}, results=results, function=lambda settings: None)
    return serialized(app, spark.createDataFrame(list(rows), columns))


TWO = "counts struct<k: string, n: int>, alerts struct<said: string, topic: string, partition: int, offset: long>"


def test_a_row_has_a_record_of_each_result_whose_struct_is_not_null(spark: SparkSession) -> None:
    rows = (("a", 1), ("hot", "t", 0, 7)), (("b", None), None), (None, ("cold", "t", 1, 8)), (None, None)
    found = several(spark, TWO, *rows).collect()
    assert sorted(tuple(row.asDict()[name] for name in ("result", "key", "value", "source")) for row in found) == [
        ("alerts", None, '{"said":"cold"}', "t:1:8"),
        ("alerts", None, '{"said":"hot"}', "t:0:7"),
        ("counts", '{"k":"a"}', '{"n":1}', None),
        ("counts", '{"k":"b"}', None, None),
    ]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("counts struct<k: string, n: int>", "returns the columns counts, but its results are counts, alerts"),
        (TWO + ", more int", "returns the columns counts, alerts, more, but its results are counts, alerts"),
        ("counts struct<k: string, n: int>, alerts string", "returns alerts as string, not as a struct"),
    ],
)
def test_several_results_are_structs_of_their_names(spark: SparkSession, columns: str, said: str) -> None:
    with pytest.raises(BadUsage, match=said):
        several(spark, columns)


def test_each_result_needs_its_key_and_a_value(spark: SparkSession) -> None:
    results: dict[str, Result] = {"counts": Table(key=("k",)), "alerts": AppendStream()}
    for columns, said in (
        (
            "counts struct<n: int>, alerts struct<said: string>",
            "result counts of app odd lacks the key column k; it has n",
        ),
        (
            "counts struct<k: string>, alerts struct<said: string>",
            "result counts of app odd has no column besides its key",
        ),
    ):
        frame = spark.createDataFrame([], columns)
        app = App(name="odd", inputs={}, results=results, function=lambda settings, frame=frame: frame)
        with pytest.raises(BadUsage, match=said):
            applied(app, {}, {})


@pytest.mark.parametrize(
    ("watermark", "delay_ms"), [(None, None), ("10 seconds", 10_000), ("1 hour 30 minutes", 5_400_000)]
)
def test_the_delay_of_a_watermark_is_known_in_milliseconds(
    spark: SparkSession, watermark: str | None, delay_ms: int | None
) -> None:
    app = App(name="a", inputs={}, results={"": Table(key=("a",))}, function=print, watermark=watermark)
    assert delay_of(app) == delay_ms


def test_a_record_without_a_timestamp_has_any_time(spark: SparkSession) -> None:
    stamps = ["1969-12-31T23:59:59.999+00:00", "2026-01-01T00:00:00+00:00"]
    value = b'{"at": "2026-01-01T00:00:10.001Z"}'
    rows = [(b"a", value, "t", 0, n, datetime.fromisoformat(at)) for n, at in enumerate(stamps)]
    source = Stream(topic="t", value=Json("at timestamp"), time="at")
    for delay_ms, malformed in ((None, [False, False]), (10_001, [False, False]), (10_000, [False, True])):
        parsed = parse(spark.createDataFrame(rows, RAW), source, delay_ms).orderBy("offset")
        assert [row[MALFORMED] is not None for row in parsed.collect()] == malformed
