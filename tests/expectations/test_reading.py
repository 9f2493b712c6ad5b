"""A small range is read by Kafka's client, a large one by Spark. Both give the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import DataFrame, SparkSession

from expectations import reading
from expectations.reading import read_rows
from expectations.verdict import GateRequest
from pipelines.kafka.client import admin
from pipelines.kafka.offsets import end_of
from pipelines.settings import Settings
from tests.conftest import FreshTopic
from tests.expectations.tables import LARGE_ORDERS_DDL, request
from tests.shared.transactions import await_ends, transactional

pytestmark = [pytest.mark.spark, pytest.mark.broker]
# no page is written: nothing is checked
NOWHERE = Path("nowhere")
Headers = list[tuple[str, str | bytes | None]]
# of each type that a result may have, and nested
DDL = (
    "k string, n int, name string, price decimal(8,2), ratio double, good boolean, at timestamp, day date, raw binary, "
    "tags array<string>, more map<string,bigint>, place struct<x:int,y:string>"
)
VALUES: list[bytes | None] = [
    b'{"name":"\xc3\xa4\xe2\x82\xac","price":1.25,"ratio":0.1,"good":true,"at":"2013-03-01T14:30:00.123456Z","day":"1500-01-01"}',
    b'{"name":null,"price":99999999.99,"ratio":"NaN","good":"yes","at":"0001-01-01T00:00:00Z","raw":"AAEC"}',
    b'{"tags":["a",null],"more":{"x":1,"y":null},"place":{"x":1,"y":"z"},"at":"1582-10-10T00:00:00Z"}',
    b"not JSON", b"", b"{}", b"\xff\xfe", None,
    b'{"name":"last","at":"2013-10-27T01:30:00+01:00"}',
]  # fmt: skip


def write(settings: Settings, topic: str, *records: tuple[int, bytes | None, bytes | None, Headers], commit: bool = True) -> None:  # fmt: skip
    producer = transactional(settings, f"{topic}-writer", topic)
    producer.begin_transaction()
    for partition, key, value, headers in records:
        producer.produce(topic, key=key, value=value, partition=partition, headers=headers)
    producer.flush(10)
    if commit:
        producer.commit_transaction(10)
    else:
        producer.abort_transaction(10)


def end_of_all(settings: Settings, topic: str, partitions: int = 1) -> dict[int, int]:
    await_ends(settings, topic, partitions)
    return end_of(settings, topic, partitions)


def content(rows: DataFrame) -> list[str]:
    """The rows as text, which the JVM makes, in an order of their own."""
    texts = rows.selectExpr("to_json(struct(*), map('ignoreNullFields', 'false')) AS row").collect()
    return sorted(row.row for row in texts)


def both(spark: SparkSession, asked: GateRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[DataFrame, DataFrame]:
    """What Kafka's client reads, and what Spark reads."""
    few = read_rows(spark, asked)
    with monkeypatch.context() as patch:
        patch.setattr(reading, "MANY_RECORDS", 0)
        many = read_rows(spark, asked)
    return few, many


@pytest.mark.parametrize("table", [True, False])
def test_both_ways_read_the_same_rows(
    table: bool, spark: SparkSession, broker: Settings, fresh_topic: FreshTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh_topic(3)
    sources: list[Headers] = [[], [("source", b"a:0:1")], [("other", b"x"), ("source", b"a:0:2"), ("source", b"b:1:1")], [("source", None)]]  # fmt: skip
    keys: list[bytes | None] = [b'{"k":"a","n":1}', b'{"k":"b"}', b"no JSON", None]
    records = [
        (number % 2, key, value, sources[(number + len(value or b"")) % len(sources)])
        for number, key in enumerate(keys * 2)
        for value in VALUES
    ]
    # each value is the last one of a key, and of an empty key
    records += [(2, b'{"k":"%d"}' % number, value, sources[1]) for number, value in enumerate(VALUES)]
    records += [(0, b"", b'{"name":"of an empty key"}', [])]
    write(broker, topic, *records)
    write(broker, topic, (0, b'{"k":"aborted"}', b"{}", []), commit=False)
    # in two partitions, and deleted in one of them
    write(
        broker, topic, (0, b'{"k":"both"}', b"{}", []), (1, b'{"k":"both"}', b"{}", []), (0, b'{"k":"gone"}', b"{}", [])
    )
    write(broker, topic, (0, b'{"k":"gone"}', None, []), (1, keys[0], None, []))
    end = end_of_all(broker, topic, 3)
    write(broker, topic, (0, b'{"k":"past the end"}', b"{}", []))

    ddl = DDL if table else f"{DDL}, topic string, partition int, offset bigint"
    asked = request(NOWHERE, topic=topic, end=end, key=("k", "n"), schema_ddl=ddl, table=table, settings=broker)
    few, many = both(spark, asked, monkeypatch)
    assert few.schema == many.schema
    assert content(few) == content(many)
    assert len(content(few)) > len(VALUES)
    assert few.rdd.getNumPartitions() == 1


def test_a_range_whose_values_are_large_is_left_to_spark(
    spark: SparkSession, broker: Settings, fresh_topic: FreshTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh_topic()
    write(broker, topic, *((0, b'{"customer":"c"}', b'{"order_id":"o"}', []) for _ in range(9)))
    asked = request(
        NOWHERE, topic=topic, end=end_of_all(broker, topic), key=("customer",), schema_ddl=LARGE_ORDERS_DDL,
        table=False, settings=broker,
    )  # fmt: skip
    monkeypatch.setattr(reading, "_FEW_BYTES", 100)
    monkeypatch.setattr(reading, "_rows_of", None)
    assert read_rows(spark, asked).count() == 9


def test_records_that_retention_has_deleted_are_missed_by_both(
    spark: SparkSession, broker: Settings, fresh_topic: FreshTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh_topic()
    write(broker, topic, *((0, b'{"customer":"c"}', b'{"order_id":"o"}', []) for _ in range(9)))
    end = end_of_all(broker, topic)
    client = admin(broker)
    [deleted] = client.delete_records([TopicPartition(topic, 0, 4)]).values()
    deleted.result(60)
    asked = request(
        NOWHERE, topic=topic, end=end, key=("customer",), schema_ddl=LARGE_ORDERS_DDL, table=False,
        settings=broker,
    )  # fmt: skip
    raised = []
    for most in (reading.MANY_RECORDS, 0):
        monkeypatch.setattr(reading, "MANY_RECORDS", most)
        with pytest.raises(Exception, match=r"(?i)data.loss|offset") as error:
            read_rows(spark, asked).count()
        raised.append(type(error.value))
    assert raised[0] is raised[1]
