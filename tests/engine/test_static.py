"""Static tables: which records are rows, what an app's function gets of them, and that a stream joins them exactly."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from pipelines.engine.raw import Record, write_records
from pipelines.engine.static import Newest, StaticTables, rows_in_topic, rows_of
from pipelines.engine.table_file import TableChanged
from pipelines.errors import BadUsage, Refused
from pipelines.model import App, AppendStream, Avro, Changelog, Json, Raw, StaticTable, Stream, Table, Text, app
from pipelines.model.app import Result, Value
from pipelines.testing import AppTest
from tests.engine.test_probe import on_nothing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

RATES = StaticTable(topic="rates", key="currency string", value=Json("rate double NOT NULL, region string"))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def joining(body: Callable[..., DataFrame], result: Result | None = None, rates: StaticTable = RATES) -> App:
    make = app(
        name="payments",
        inputs={
            "paid": Stream(topic="paid", key="id string", value=Json("currency string, region string, amount double")),
            "rates": rates,
        },
        result=result or AppendStream(key=("id",)),
    )
    return make(lambda paid, rates, settings: body(paid, rates))


def records(*given: tuple[int, Any, Any]) -> list[Record]:
    """Partition, key and value of each; offsets ascend in each partition."""
    seen: dict[int, int] = {}
    found = []
    for partition, key, value in given:
        offset = seen.get(partition, 0)
        seen[partition] = offset + 1
        body = json.dumps(value).encode() if isinstance(value, dict) else value
        found.append(Record(topic="rates", partition=partition, offset=offset, key=key, value=body, time=NOON))
    return found


def test_the_newest_record_of_a_key_is_its_row_unless_it_deletes_it_or_can_not_be_read(spark: SparkSession) -> None:
    given = records(
        (0, b"EUR", {"rate": 1.0}),
        (1, b"CHF", {"rate": 2.0}),
        (0, b"EUR", {"rate": 1.5, "region": "EU"}),
        (0, b"GBP", {"rate": 3.0}),
        (0, b"GBP", None),
        # deleted, then there again
        (1, b"JPY", {"rate": 4.0}),
        (1, b"JPY", None),
        (1, b"JPY", {"rate": 5.0}),
        # the row before it stays
        (1, b"CHF", {"region": "CH"}),
        (0, b"SEK", b"{"),
        (0, None, {"rate": 9.0}),
        (0, b"NOK", None),
    )
    rows, found = rows_of(spark, given, RATES)
    assert {key: json.loads(value)["rate"] for key, value in rows} == {b"EUR": 1.5, b"CHF": 2.0, b"JPY": 5.0}
    assert found.malformed == 3
    assert found.in_words.startswith("3 malformed records, the first at rates[0] offset 4: the value is not JSON")
    assert rows_of(spark, [], RATES)[0] == []


@pytest.mark.parametrize(
    ("table", "given", "keys"),
    [
        # the same key, written differently
        (
            StaticTable(topic="rates", key=Json("a string NOT NULL, b int NOT NULL"), value=Text("said")),
            [(0, b'{"a": "x", "b": 1}', b"old"), (0, b'{"b":1,"a":"x"}', b"new"), (0, b'{"a": "x"}', b"bad key")],
            {b'{"b":1,"a":"x"}': b"new"},
        ),
        (
            StaticTable(topic="rates", key="k string", value=Raw("data")),
            [(0, b"k", b"\xff\x00"), (0, b"\xff", b"bad key")],
            {b"k": b"\xff\x00"},
        ),
    ],
)  # fmt: skip
def test_keys_and_values_are_read_as_those_of_a_changelog(
    spark: SparkSession, table: StaticTable, given: list[Any], keys: dict[bytes, bytes]
) -> None:
    rows, found = rows_of(spark, records(*given), table)
    assert dict(rows) == keys and found.malformed == len(given) - len(keys) - ("old" in str(given))


def test_the_rows_of_a_topic_that_was_read_are_those_of_its_records_and_no_more_than_they_may_be(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "rates.parquet")
    given = records((0, b"EUR", {"rate": 1}), (0, b"EUR", {"rate": 1.5}), (1, b"CHF", {"rate": 2}), (1, b"GBP", None))
    write_records(path, [given[:2], [], given[2:]])
    rows, found = rows_in_topic(spark, path, RATES, "static table rates of app payments", 100)
    assert (sorted(rows), found) == (
        sorted(rows_of(spark, given, RATES)[0]),
        Newest(places=frozenset({(0, 1), (1, 0)})),
    )
    with pytest.raises(Refused, match="static table rates of app payments has more than 9 bytes") as refused:
        rows_in_topic(spark, path, RATES, "static table rates of app payments", 9)
    assert "as_of" in str(refused.value.fix)
    write_records(path, [])
    assert rows_in_topic(spark, path, RATES, "static table rates of app payments", 100) == ([], Newest())


def test_a_driver_reads_every_row_of_a_static_table_or_does_not_run(spark: SparkSession) -> None:
    priced = joining(lambda paid, rates: paid.join(rates, "currency"))
    good = [(b"EUR", b'{"rate": 1}'), (b"CHF", b'{"rate": 2}')]
    [frame] = StaticTables({"rates": good}, "payments.v1").frames(spark, priced).values()
    assert sorted(frame.collect()) == [("CHF", 2.0, None), ("EUR", 1.0, None)]
    with pytest.raises(TableChanged, match=r"of the 3 rows of static table rates of payments\.v1, .* reads only 2"):
        StaticTables({"rates": [*good, (b"GBP", b"{}")]}, "payments.v1").frames(spark, priced)


def test_a_stream_is_joined_by_any_columns_and_the_table_never_changes(spark: SparkSession) -> None:
    def by_region(paid: DataFrame, rates: DataFrame) -> DataFrame:
        # not by its key, and after an aggregate of the table
        most = rates.groupBy("region").agg(F.max("rate").alias("most"))
        return paid.join(most, "region", "left").select("id", "region", "most", "topic", "partition", "offset")

    with AppTest(spark, joining(by_region)) as test:
        test.send("rates", {"rate": 1.5, "region": "EU"}, key="EUR")
        test.send("rates", {"rate": 1.2, "region": "EU"}, key="GBP")
        test.send("rates", {"region": "EU"}, key="SEK")
        test.send("paid", {"region": "EU", "amount": 1}, key="1")
        test.send("paid", {"region": "US", "amount": 1}, key="2")
        batch = test.run()
        assert sorted((row["id"], row["most"]) for row in batch) == [("1", 1.5), ("2", None)]
        assert sorted(str(source) for source in batch.sources) == ["paid:0:0", "paid:0:1"]
        assert test.malformed == {"rates": "1 malformed record, the first at rates[0] offset 2: field rate is missing"}
        assert batch.dead_letters == []
        with pytest.raises(BadUsage, match="static table rates of app payments does not change while a release lives"):
            test.send("rates", {"rate": 9.9, "region": "US"}, key="USD")
        test.restart()
        test.send("paid", {"region": "US", "amount": 1}, key="3")
        assert [(row["id"], row["most"]) for row in test.run()] == [("3", None)]


@pytest.mark.parametrize(("how", "expected"), [("inner", [("1", 1.5)]), ("left", [("1", 1.5), ("2", None)])])
def test_each_row_of_the_stream_finds_all_of_its_rows(spark: SparkSession, how: str, expected: list[Any]) -> None:
    def priced(paid: DataFrame, rates: DataFrame) -> DataFrame:
        return paid.join(rates.drop("region"), "currency", how).select("id", "rate")

    with AppTest(spark, joining(priced)) as test:
        test.send("rates", {"rate": 1.5}, key="EUR")
        test.send("paid", {"currency": "EUR"}, key="1")
        test.send("paid", {"currency": "CHF"}, key="2")
        assert sorted((row["id"], row["rate"]) for row in test.run()) == expected
    # an empty table leaves nothing out of the plan
    with AppTest(spark, joining(priced)) as test:
        test.send("paid", {"currency": "EUR"}, key="1")
        assert [row["rate"] for row in test.run()] == ([] if how == "inner" else [None])


def test_a_changelog_is_joined_with_it_too(spark: SparkSession) -> None:
    make = app(
        name="stock",
        inputs={
            "stock": Changelog(topic="stock", key="sku string", value=Json("place string")),
            "places": StaticTable(topic="places", key="place string", value=Json("city string")),
        },
        result=Table(key=("sku",)),
    )
    placed = make(lambda stock, places, settings: stock.join(places, "place", "left").select("sku", "city"))
    with AppTest(spark, placed) as test:
        test.send("places", {"city": "Bern"}, key="3000")
        test.send("stock", {"place": "3000"}, key="a")
        test.run()
        assert test.table == {("a",): {"city": "Bern"}}
        test.send("stock", None, key="a")
        test.run()
        assert test.table == {}


SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "rate", "type": "long"}]}'


@pytest.mark.parametrize(("value", "sent", "row"), [
    (Avro(SCHEMA), b"\x04", {"rate": 2}),
    (Text("said"), b"hello", {"said": "hello"}),
    (Raw("data"), b"\xff\x00", {"data": base64.b64encode(b"\xff\x00").decode()}),
])  # fmt: skip
def test_every_kind_of_value_works(spark: SparkSession, value: Value, sent: bytes, row: dict[str, Any]) -> None:
    table = StaticTable(topic="rates", key="currency string", value=value)

    def priced(paid: DataFrame, rates: DataFrame) -> DataFrame:
        return paid.join(rates, "currency").select("id", *row)

    with AppTest(spark, joining(priced, rates=table)) as test:
        test.send("rates", sent, key="EUR")
        test.send("paid", {"currency": "EUR"}, key="1")
        assert test.run().rows == [{"id": "1", **row}]


def test_a_row_of_it_that_no_row_of_the_stream_will_match_can_not_be_told(spark: SparkSession) -> None:
    def all_of_it(paid: DataFrame, rates: DataFrame) -> DataFrame:
        return paid.drop("region").join(rates, "currency", "right").select("id", "rate")

    with pytest.raises(BadUsage, match="can't run as a stream: AnalysisException"):
        on_nothing(spark, joining(all_of_it))
