"""Reads JSON as Spark does, faster where a record is plain; see jvm/PlainJson.scala."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql.types import StructType

from pipelines.engine.jvm.classes import java_class


def from_json(text: Column, schema: StructType, options: Mapping[str, str]) -> Column:
    """What Spark's `from_json` makes of `text`, a string column. Needs a Spark context in this process."""
    made = java_class("org.apache.spark.sql.switchyard.PlainJson").column(text._jc, schema.json(), dict(options))
    return Column(made)
