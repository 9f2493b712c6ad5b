"""A release's result as rows: the records of its topic, decoded, and for a table folded."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipelines.model.names import SOURCE_COLUMNS

SOURCE_HEADER = "source"


def fold(records: DataFrame) -> DataFrame:
    """The last record of each key, without deleted keys: key, value.

    A key belongs to one partition. If it is in two, both rows stay, so that the suite finds it.
    """
    last = records.groupBy("partition", "key").agg(F.max_by("value", "offset").alias("value"))
    return last.where(F.col("value").isNotNull()).select("key", "value")


def decode_table(folded: DataFrame, schema: StructType, key: Sequence[str]) -> DataFrame:
    """A table's columns, in the schema's order. A field that is missing or can't be parsed is null."""
    return _decode(folded, schema, key, from_source=())


def decode_stream(records: DataFrame, schema: StructType, key: Sequence[str]) -> DataFrame:
    """A stream's columns, in the schema's order; topic, partition and offset come from the header `source`."""
    header = F.filter("headers", lambda header: header["key"] == SOURCE_HEADER)
    # `get`, as in ANSI mode an index out of range is an error
    return decode_with_source(
        records.select("key", "value", F.get(header, F.lit(0))["value"].alias("source")), schema, key
    )


def decode_with_source(records: DataFrame, schema: StructType, key: Sequence[str]) -> DataFrame:
    """The same of records whose column `source` is the value of that header, as bytes."""
    carried = SOURCE_COLUMNS if set(SOURCE_COLUMNS) <= set(schema.fieldNames()) else ()
    source = F.split(F.col("source").cast("string"), ":")
    return _decode(records.select("key", "value", source.alias("source")), schema, key, from_source=carried)


def _decode(records: DataFrame, schema: StructType, key: Sequence[str], from_source: Sequence[str]) -> DataFrame:
    in_key = StructType([field for field in schema if field.name in key])
    in_value = StructType([field for field in schema if field.name not in {*key, *from_source}])
    parsed = records.select(
        F.from_json(F.col("key").cast("string"), in_key).alias("k"),
        F.from_json(F.col("value").cast("string"), in_value).alias("v"),
        *(["source"] if from_source else []),
    )

    def column(name: str, kind: str) -> Column:
        if name in from_source:
            return F.get("source", F.lit(from_source.index(name))).try_cast(kind).alias(name)
        return F.col("k" if name in key else "v")[name].alias(name)

    return parsed.select(*[column(field.name, field.dataType.simpleString()) for field in schema])
