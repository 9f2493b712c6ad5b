"""The jars that the project fetches are the ones that this Spark needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.kafka.client import producer
from pipelines.settings import Settings
from tests.conftest import FreshTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.broker
@pytest.mark.spark
def test_spark_reads_a_topic(broker: Settings, spark: SparkSession, fresh_topic: FreshTopic) -> None:
    topic = fresh_topic(2)
    client = producer(broker)
    for number in range(10):
        client.produce(topic, str(number).encode(), key=str(number).encode())
    assert client.flush(10) == 0
    frame = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", topic)
    values = frame.load().selectExpr("cast(cast(value as string) as int) as value").collect()
    assert sorted(row.value for row in values) == list(range(10))


@pytest.mark.spark
def test_spark_knows_avro(spark: SparkSession) -> None:
    from pyspark.sql.avro.functions import from_avro, to_avro
    from pyspark.sql.functions import col

    schema = '{"type": "long", "name": "value"}'
    packed = spark.range(3).select(to_avro(col("id"), schema).alias("value"))
    unpacked = packed.select(from_avro(col("value"), schema).alias("id")).collect()
    assert [row.id for row in unpacked] == [0, 1, 2]
