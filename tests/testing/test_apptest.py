"""The kit that authors test their apps with: it must show what a driver would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from pipelines.errors import BadUsage, Refused
from pipelines.model import App, AppendStream, Json, Stream, Table, app
from pipelines.model.app import Oversized, Result
from pipelines.testing import AppFailed, AppTest, RowTooLarge, at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


def app_of(body: Callable[..., Any], value: Json, result: Result, *, key: str | Json | None = None, **more: Any) -> App:
    make = app(name="odd", inputs={"given": Stream(topic="given", key=key, value=value)}, result=result, **more)
    return make(lambda settings, given: body(given))


MINUTES = app_of(
    lambda given: given.groupBy(F.window("event_time", "1 minute").alias("window")).count().select(
        F.date_format("window.start", "HH:mm").alias("minute"), "count"
    ),
    Json("n int"),
    Table(key=("minute",), emit="final"),
    watermark="10 seconds",
)  # fmt: skip


@pytest.mark.usefixtures("compiled")
def test_a_window_is_emitted_once_the_watermark_has_passed_it(spark: SparkSession) -> None:
    with AppTest(spark, MINUTES) as test:
        test.send("given", {"n": 1}, time=5)
        test.send("given", {"n": 2}, time=59)
        batch = test.run()
        assert batch.rows == [] and batch.watermark == at(49)
        assert test.advance_watermark(59.9).rows == []
        batch = test.advance_watermark("2026-01-01T12:01:00")
        assert batch.rows == [{"minute": "12:00", "count": 2}]
        assert batch.watermark == datetime(2026, 1, 1, 12, 1, tzinfo=UTC)
        test.send("given", {"n": 3}, time=59)
        late = test.run()
        assert (late.rows, late.late) == ([], 1)
        assert test.table == {("12:00",): {"count": 2}}


@pytest.mark.usefixtures("compiled")
def test_the_watermark_can_be_moved_before_any_record_comes(spark: SparkSession) -> None:
    with AppTest(spark, MINUTES) as test:
        assert test.advance_watermark(60).rows == []
        test.send("given", {"n": 1}, time=30)
        assert test.run().late == 1


def sums_of(given: DataFrame) -> DataFrame:
    return given.groupBy("name").agg(F.sum("amount").alias("sum"))


SUMS = app_of(
    sums_of,
    Json("amount double NOT NULL"),
    Table(key=("name",)),
    key="name string",
)


def test_state_is_read_from_the_checkpoint_after_a_restart(spark: SparkSession) -> None:
    with AppTest(spark, SUMS) as test:
        test.send("given", {"amount": 1}, key="a")
        test.run()
        test.restart()
        test.send("given", {"amount": 2}, key="a")
        assert test.run().rows == [{"name": "a", "sum": 3.0}]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"\xffa", {"amount": 1}, "the key is not UTF-8"),
        (None, {"amount": 1}, "the key is null"),
        ("a", None, "the value is null"),
        ("a", b'{"amount": 1, "note": "\xff"}', "the value is not UTF-8"),
        ("a", '{"amount": NaN}', "the value is not JSON"),
        ("a", '{"amount": "NaN"}', "field amount is not double"),
        ("a", '{"amount": "Infinity"}', "field amount is not double"),
        ("a", '{"amount": 1e999}', "field amount is too large a number"),
        ("a", '{"amount": "many"}', "field amount is not double"),
        ("a", {}, "field amount is missing"),
    ],
)
def test_what_would_corrupt_a_result_is_a_dead_letter_which_says_why(
    spark: SparkSession, key: Any, value: Any, reason: str
) -> None:
    with AppTest(spark, SUMS) as test:
        sent = test.send("given", value, key=key)
        test.send("given", {"amount": 2}, key="a")
        batch = test.run()
    assert batch.rows == [{"name": "a", "sum": 2.0}]
    [letter] = batch.dead_letters
    assert (letter.reason, letter.offset, letter.key, letter.value) == (reason, 0, sent.key, sent.value)


def test_texts_that_differ_in_halves_of_surrogate_pairs_are_not_one_text(spark: SparkSession) -> None:
    by_name = app_of(sums_of, Json("name string, amount double NOT NULL"), Table(key=("name",)))
    by_key = app_of(sums_of, Json("amount double NOT NULL"), Table(key=("name",)), key=Json("name string"))
    names = ('"\\ud800"', '"\\udfff"', '"?"', '"\\ud83d\\ude00"', '"\\ude00\\ud83d"', '"😀"')
    for of, app_ in (("", by_name), (" in the key", by_key)):
        with AppTest(spark, app_) as test:
            for name in names:
                test.send("given", f'{{"name": {name}, "amount": 1}}', key=f'{{"name": {name}}}')
            batch = test.run()
        assert sorted(batch.rows, key=lambda row: row["sum"]) == [
            {"name": "?", "sum": 1.0},
            {"name": "😀", "sum": 2.0},
        ]
        assert [letter.offset for letter in batch.dead_letters] == [0, 1, 4]
        assert {letter.reason for letter in batch.dead_letters} == {f"field name has half of a surrogate pair{of}"}


def test_keys_that_differ_in_bytes_that_are_no_text_are_not_one_key(spark: SparkSession) -> None:
    with AppTest(spark, SUMS) as test:
        for key in (b"\xfe", b"\xff", b"\xef\xbf\xbd"):
            test.send("given", {"amount": 1}, key=key)
        batch = test.run()
    # the last one is the replacement character itself, which is text
    assert batch.rows == [{"name": "\ufffd", "sum": 1.0}]
    assert [letter.offset for letter in batch.dead_letters] == [0, 1]


NESTED = app_of(
    lambda given: given.select(
        "store", "sku", F.size("legs").alias("legs"), F.col("where.floor").alias("floor"), "tags"
    ),
    Json(
        "legs array<struct<price: double NOT NULL>>, where struct<place: string NOT NULL, floor: int>, tags map<string, double>"
    ),
    AppendStream(key=("store", "sku")),
    key=Json("store string NOT NULL, sku int NOT NULL"),
)


def test_nested_values_and_keys_of_several_columns(spark: SparkSession) -> None:
    good = {"legs": [{"price": 1}, {"price": 2}], "where": {"place": "x", "floor": 3}, "tags": {"a": 1.5}}
    key = {"store": "s1", "sku": 7}
    bad: list[tuple[Any, Any, str]] = [
        ({"store": "s1"}, good, "field sku is missing in the key"),
        ("s1", good, "the key is not JSON: Expecting value at character 0"),
        ("[1]", good, "the key is an array, not a JSON object"),
        ({"store": "s1", "sku": "one"}, good, "field sku is not int in the key"),
        ('{"store": "\\udc00", "sku": 1}', good, "field store has half of a surrogate pair in the key"),
        (key, '{"tags": {"\\ud800": 1}}', "field tags has half of a surrogate pair in a key"),
        (key, {**good, "legs": [{"price": 1}, {}]}, "field legs[].price is missing"),
        (key, {**good, "where": {"floor": 1}}, "field where.place is missing"),
        (key, {**good, "legs": [{"price": "x"}]}, "field legs[0].price is not double"),
        (key, '{"tags": {"a": 1e999}}', "field tags{} is too large a number"),
        (key, '{"legs": [{"price": -1e999}]}', "field legs[].price is too large a number"),
    ]
    with AppTest(spark, NESTED) as test:
        test.send("given", good, key=key)
        test.send("given", {}, key=key)
        for wrong_key, value, _ in bad:
            test.send("given", value, key=wrong_key)
        batch = test.run()
    assert batch.rows == [
        {"store": "s1", "sku": 7, "legs": 2, "floor": 3, "tags": {"a": 1.5}},
        {"store": "s1", "sku": 7, "legs": None, "floor": None, "tags": None},
    ]
    assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in bad]


def test_a_field_that_has_the_name_of_a_given_column_is_renamed(spark: SparkSession) -> None:
    def body(given: DataFrame) -> DataFrame:
        return given.select("id", "at", F.col("offset").alias("stands_at"))

    value = Json("id string, offset long", rename={"offset": "at"})
    with AppTest(spark, app_of(body, value, AppendStream(key=("id",)))) as test:
        test.send("given", {"id": "a", "offset": 70})
        assert test.run().rows == [{"id": "a", "at": 70, "stands_at": 0}]
    with (
        AppTest(spark, app_of(body, Json("id string, Offset long"), AppendStream(key=("id",)))) as test,
        pytest.raises(BadUsage, match="input given would have two columns named Offset") as refused,
    ):
        test.run()
    assert 'rename={"Offset": "my_Offset"}' in refused.value.fix


def test_names_that_spark_would_read_as_more_than_a_name(spark: SparkSession) -> None:
    body = app_of(
        lambda given: given.select(F.col("`a.b`").alias("k.1"), F.col("`c``d`").alias("v`2")),
        Json("`a.b` string NOT NULL, `c``d` double NOT NULL"),
        Table(key=("k.1",)),
    )
    with AppTest(spark, body) as test:
        test.send("given", {"a.b": "x", "c`d": 1})
        assert test.run().rows == [{"k.1": "x", "v`2": 1.0}]


def test_rows_of_a_stream_need_no_key_and_name_their_record(spark: SparkSession) -> None:
    body = app_of(lambda given: given.select("n", "topic", "partition", "offset"), Json("n int"), AppendStream(key=()))
    with AppTest(spark, body) as test:
        test.send("given", {"n": 5}, partition=2)
        batch = test.run()
    assert (batch.rows, batch.sources) == ([{"n": 5}], ["given:2:0"])


def test_a_row_without_values_deletes_its_key(spark: SparkSession) -> None:
    latest = app_of(
        lambda given: given.groupBy("name").agg(F.max_by("amount", "offset").alias("amount")),
        Json("amount double"),
        Table(key=("name",)),
        key="name string",
    )
    with AppTest(spark, latest) as test:
        test.send("given", {"amount": 1}, key="a")
        test.run()
        assert test.table == {("a",): {"amount": 1.0}}
        test.send("given", {}, key="a")
        assert test.run().rows == [{"name": "a"}]
        assert test.table == {}


def test_a_batch_that_fails_says_where_in_the_function(spark: SparkSession) -> None:
    def price_of(text: str) -> float:
        return float(text) / 0

    failing = app_of(
        lambda given: given.select("id", F.udf(price_of, "double")("price").alias("price")),
        Json("id string, price string"),
        AppendStream(key=("id",)),
    )
    with AppTest(spark, failing) as test:
        test.send("given", {"id": "a", "price": "1"})
        with pytest.raises(AppFailed, match="ZeroDivisionError") as failed:
            test.run()
    assert "test_apptest.py, line " in failed.value.what and "in price_of" in failed.value.what


def test_a_column_that_fails_says_where_it_was_made_and_nothing_is_printed_of_it(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    def body(given: DataFrame) -> DataFrame:
        return given.select("id", (F.lit(1) / F.col("price")).alias("price"))

    with AppTest(spark, app_of(body, Json("id string, price double"), AppendStream(key=("id",)))) as test:
        test.send("given", {"id": "a", "price": 0})
        with pytest.raises(AppFailed, match="DIVIDE_BY_ZERO") as failed:
            test.run()
    line = body.__code__.co_firstlineno + 1
    assert failed.value.what.endswith(f"(test_apptest.py, line {line})")
    assert "DIVIDE_BY_ZERO" not in "".join(capfd.readouterr())


def test_nothing_is_printed_of_an_sql_expression_that_fails(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    failing = app_of(
        lambda given: given.selectExpr("id", "1 / price AS price"),
        Json("id string, price double"),
        AppendStream(key=("id",)),
    )
    with AppTest(spark, failing) as test:
        test.send("given", {"id": "a", "price": 0})
        with pytest.raises(AppFailed, match="DIVIDE_BY_ZERO"):
            test.run()
    assert "DIVIDE_BY_ZERO" not in "".join(capfd.readouterr())


def test_a_column_that_does_not_exist_is_named_without_spark_s_plan(spark: SparkSession) -> None:
    def body(given: DataFrame) -> DataFrame:
        return given.select("id", F.col("prise").alias("price"))

    with (
        AppTest(spark, app_of(body, Json("id string, price double"), AppendStream(key=("id",)))) as test,
        pytest.raises(AppFailed, match="`prise` cannot be resolved") as failed,
    ):
        test.run()
    assert "test_apptest.py, line " in failed.value.what and "Project" not in failed.value.what


def test_a_function_that_raises_says_where(spark: SparkSession) -> None:
    def body(given: DataFrame) -> DataFrame:
        raise ValueError("size must be 1 or more")

    with (
        AppTest(spark, app_of(body, Json("n int"), AppendStream(key=("n",)))) as test,
        pytest.raises(AppFailed, match="the function of app odd raises: ValueError: size must be 1 or more") as failed,
    ):
        test.run()
    assert "(test_apptest.py, line " in failed.value.what and "in body)" in failed.value.what


def test_what_an_app_does_not_have_is_refused(spark: SparkSession) -> None:
    with pytest.raises(BadUsage, match="app odd has no setting limit; it has none"):
        AppTest(spark, SUMS, limit=1)
    with AppTest(spark, SUMS) as test:
        with pytest.raises(BadUsage, match="app odd has no input orders; it has given"):
            test.send("orders", {})
        with pytest.raises(BadUsage, match="app odd has no watermark"):
            test.advance_watermark(1)


class Alarm(StatefulProcessor):
    """Tells of a key when its time has come: `n` seconds after the record."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for due in frame["due"]:
                self._handle.registerTimer(due)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"name": [key[0]], "due": [expiredTimerInfo.getExpiryTimeInMs()]})

    def close(self) -> None:
        pass


def alarms(given: DataFrame, time_mode: str) -> DataFrame:
    due = given.select("name", "event_time", F.expr("unix_millis(event_time) + n * 1000").alias("due"))
    told = due.groupBy("name").transformWithStateInPandas(Alarm(), "name string, due long", "append", time_mode)
    return told.select("name", F.date_format(F.timestamp_millis("due"), "HH:mm:ss").alias("due"))


def alarm_app(time_mode: str) -> App:
    return app_of(
        lambda given: alarms(given, time_mode),
        Json("n int NOT NULL"),
        AppendStream(key=("name",)),
        key="name string",
        watermark="10 seconds",
    )


def test_timers_go_off_when_the_watermark_has_reached_them_also_after_a_restart(spark: SparkSession) -> None:
    with AppTest(spark, alarm_app("eventTime")) as test:
        test.send("given", {"n": 30}, key="a", time=0)
        test.send("given", {"n": 20}, key="b", time=0)
        assert test.run().rows == []
        test.restart()
        assert test.advance_watermark(19.999).rows == []
        assert test.advance_watermark(20).rows == [{"name": "b", "due": "12:00:20"}]
        # a record moves the watermark, too; and one timer sets off no other
        test.send("given", {"n": 60}, key="c", time=41)
        assert test.run().rows == [{"name": "a", "due": "12:00:30"}]


def test_timers_by_the_clock_are_refused_as_at_staging(spark: SparkSession) -> None:
    with AppTest(spark, alarm_app("processingTime")) as test, pytest.raises(Refused, match="processing-time timers"):
        test.run()


# of a record: 1,048,448 bytes, less 36 that each has, 12 of the key {"name":"a"}, 17 of the header source: given:0:0, and
# 11 of the value {"text":""}
FITS = 1_048_448 - 36 - 12 - 17 - 11
AVRO = '{"type": "record", "name": "Row", "fields": [{"name": "text", "type": "string"}]}'


def texts(oversized: Oversized, avro: str | None = None) -> App:
    return app_of(
        lambda given: given.select("name", "text", "topic", "partition", "offset"),
        Json("text string NOT NULL"),
        AppendStream(key=("name",), avro=avro),
        key="name string",
        oversized=oversized,
    )


def test_a_row_that_is_larger_than_a_record_is_a_dead_letter_if_the_app_says_so(spark: SparkSession) -> None:
    with AppTest(spark, texts("dead-letter")) as test:
        for length in (FITS, FITS + 1):
            test.send("given", {"text": "x" * length}, key="a")
        batch = test.run()
        assert batch.rows == [{"name": "a", "text": "x" * FITS}] and batch.sources == ["given:0:0"]
        [letter] = batch.dead_letters
        assert (letter.topic, letter.partition, letter.offset) == ("odd.v1.g1", None, None)
        assert (letter.key, letter.value) == (b'{"name":"a"}', None)
        assert letter.reason == "too large for a record, which may have 1,048,448 bytes at most"
        assert letter.headers == {
            "topic": b"odd.v1.g1",
            "reason": letter.reason.encode(),
            "batch": b"0",
            "value-bytes": str(FITS + 1 + 11).encode(),
            "source": b"given:0:1",
        }


def test_a_row_that_is_larger_than_a_record_stops_any_other_app(spark: SparkSession) -> None:
    with AppTest(spark, texts("stop")) as test:
        test.send("given", {"text": "x"}, key="a")
        test.send("given", {"text": "x" * (FITS + 1)}, key="a")
        with pytest.raises(RowTooLarge) as stopped:
            test.run()
    assert 'batch 0 has a row for odd.v1.g1 from given:0:1, with the key {"name":"a"}' in stopped.value.what
    assert "oversized='dead-letter'" in stopped.value.fix


def test_a_row_in_avro_is_as_large_as_its_avro(spark: SparkSession) -> None:
    # as JSON, each of these has six letters
    with AppTest(spark, texts("stop", AVRO)) as test:
        test.send("given", {"text": "\1" * 200_000}, key="a")
        assert test.run().rows == [{"name": "a", "text": "\1" * 200_000}]
    with AppTest(spark, texts("dead-letter", AVRO)) as test:
        # the text's length comes before it, in three bytes instead of the eleven of JSON
        for length in (FITS + 8, FITS + 9):
            test.send("given", {"text": "x" * length}, key="a")
        batch = test.run()
        assert [len(row["text"]) for row in batch] == [FITS + 8]
        assert [letter.headers["value-bytes"] for letter in batch.dead_letters] == [str(FITS + 9 + 3).encode()]
