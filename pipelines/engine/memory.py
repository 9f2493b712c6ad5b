"""Spark's in-memory source, filled with records as Kafka's source gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pipelines.engine.jvm.classes import java_class

_SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"
_ARROW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of an input topic. `time`: its timestamp, with a time zone."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    time: datetime


class MemorySource:
    """A streaming source that reads what `add` is given, each call in a batch of its own."""

    def __init__(self, spark: SparkSession) -> None:
        schema = spark._jsparkSession.parseDataType(_struct(spark))
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
        columns = [
            [getattr(r, name) for r in records] for name in ("key", "value", "topic", "partition", "offset", "time")
        ]
        table = pa.table([pa.array(c, type=f.type) for c, f in zip(columns, _ARROW, strict=True)], schema=_ARROW)
        rows = self._spark.createDataFrame(table)._jdf.collectAsList()
        self._stream.addData(self._converters.asScala(rows).toSeq())


def _struct(spark: SparkSession) -> str:
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(_SCHEMA)
    assert isinstance(schema, StructType)
    return schema.json()
