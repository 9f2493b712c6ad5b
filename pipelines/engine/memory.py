"""Spark's in-memory source, filled with records as Kafka's source gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pipelines.engine.jvm.classes import java_class
from pipelines.engine.raw import Record, as_arrow

_SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"


class MemorySource:
    """A streaming source that reads what `add` is given, each call in a batch of its own."""

    def __init__(self, spark: SparkSession) -> None:
        schema = spark._jsparkSession.parseDataType(_struct())
        encoder = java_class("org.apache.spark.sql.Encoders").row(schema)
        memory = java_class("org.apache.spark.sql.execution.streaming.MemoryStream")
        self._spark = spark
        self._converters = java_class("scala.jdk.javaapi.CollectionConverters")
        self._stream = memory.apply(encoder, spark._jsparkSession.sqlContext())
        self.frame = DataFrame(self._stream.toDF(), spark)

    def is_source(self, stream: Any) -> bool:
        """Whether `stream`, one of those that a query reads, is this one."""
        return bool(self._stream.equals(stream))

    def add(self, records: Sequence[Record]) -> None:
        """Makes `records` what the next batch reads."""
        rows = self._spark.createDataFrame(as_arrow(records))._jdf.collectAsList()
        self._stream.addData(self._converters.asScala(rows).toSeq())


def _struct() -> str:
    # Spark parses it, in the session that is active
    schema = StructType.fromDDL(_SCHEMA)
    assert isinstance(schema, StructType)
    return schema.json()
