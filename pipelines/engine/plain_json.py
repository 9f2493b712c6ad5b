"""Reads and writes JSON as Spark does, faster where a record is plain; see PlainJson, JsonText and Utf8 in jvm/."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql.types import StructType

from pipelines.engine.jvm.classes import java_class


def from_json(text: Column, schema: StructType, corrupt: str) -> Column:
    """What Spark's `from_json` makes of `text`, a string column: a struct of `schema` and of the string `corrupt`, which
    has the text of a malformed record. NaN, Infinity and texts with half of a surrogate pair are malformed.

    Needs a Spark context in this process. Raises AnalysisException for a type that JSON can't have.
    """
    made = java_class("org.apache.spark.sql.switchyard.PlainJson").column(text._jc, schema.json(), corrupt)
    return Column(made)


def is_utf8(binary: Column) -> Column:
    """What Spark's `is_valid_utf8` says of `binary`, a binary column: a boolean, null where that is null. Needs a Spark context
    in this process.
    """
    return Column(java_class("org.apache.spark.sql.switchyard.Utf8").column(binary._jc))


def to_json(struct: Column) -> Column:
    """What Spark's `to_json` makes of `struct`, a struct column, with its null fields.

    Needs a Spark context in this process. Raises AnalysisException for a type that JSON can't have.
    """
    return Column(java_class("org.apache.spark.sql.switchyard.JsonText").column(struct._jc))
