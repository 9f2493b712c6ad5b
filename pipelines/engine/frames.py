"""DataFrames in and out: parses records, sets malformed ones apart, and serializes rows by key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from pipelines.engine.session import spark_kafka_options
from pipelines.errors import BadUsage
from pipelines.model.app import App, AppendStream, AppSettings, Input, Json, Raw, Text
from pipelines.settings import Settings

CORRUPT = "_corrupt"
MALFORMED = "_malformed"
SOURCE_COLUMNS = ("topic", "partition", "offset")
_ADDED = "event_time timestamp, topic string, partition int, offset long"


def ddl_columns(ddl: str) -> StructType:
    """The columns of a DDL such as 'side string, price double'. Raises BadUsage if it describes no columns."""
    found = StructType.fromDDL(ddl)
    if not isinstance(found, StructType):
        raise BadUsage(f"{ddl!r} is one type, not columns", fix="write columns, such as 'side string, price double'")
    return found


def value_schema(source: Input) -> StructType:
    """Columns of an input's value. Raises BadUsage if its DDL can't be parsed."""
    if isinstance(source.value, Text):
        return ddl_columns(f"`{source.value.column}` string")
    if isinstance(source.value, Raw):
        return ddl_columns(f"`{source.value.column}` binary")
    try:
        return ddl_columns(source.value.schema)
    except Exception as error:
        raise BadUsage(
            f"schema {source.value.schema!r} is not Spark DDL: {_first_line(error)}",
            fix="write columns, such as 'side string, price double'",
        ) from error


def key_column(source: Input) -> str | None:
    """Name of an input's key column. Raises BadUsage unless it is one string column."""
    if source.key is None:
        return None
    fields = ddl_columns(source.key).fields
    if len(fields) != 1 or not isinstance(fields[0].dataType, StringType):
        raise BadUsage(f"key {source.key!r} is not one string column", fix="write for example key='ticker string'")
    return str(fields[0].name)


def input_schema(source: Input) -> StructType:
    """All columns that an app's function gets of an input: key, value, event_time, topic, partition, offset."""
    key = key_column(source)
    fields = [] if key is None else ddl_columns(f"`{key}` string").fields
    return StructType([*fields, *value_schema(source).fields, *ddl_columns(_ADDED).fields])


def nothing(spark: SparkSession, schema: StructType) -> DataFrame:
    """A frame with these columns, no rows and one partition.

    Not `createDataFrame([], schema)`: a Python worker would read it, which takes seconds to start. And Spark leaves a frame
    that it knows to be empty out of the plan.
    """
    session, context = spark._jsparkSession, spark.sparkContext
    assert context._jvm is not None
    rows = context._jsc.parallelize(context._jvm.java.util.ArrayList(), 1)
    return DataFrame(session.createDataFrame(rows, session.parseDataType(schema.json())), spark)


def parse(raw: DataFrame, source: Input) -> DataFrame:
    """Kafka's columns -> the input's columns and `_malformed`, which is null for a good record.

    For a malformed one it is a struct: topic, partition, offset, key and value (the original bytes), reason.
    """
    schema = value_schema(source)
    key = key_column(source)
    kept: list[Column] = [F.col("key").alias("_key"), F.col("value").alias("_value")]
    kept += [] if key is None else [F.col("key").cast("string").alias(key)]
    added = [F.col("timestamp").alias("event_time"), *(F.col(name) for name in SOURCE_COLUMNS)]
    reason = F.when(F.col("_value").isNull(), F.lit("the value is null"))
    if isinstance(source.value, Json):
        wanted = StructType([*schema.fields, *ddl_columns(f"{CORRUPT} string").fields])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        parsed = F.from_json(F.col("_value").cast("string"), wanted, options).alias("_parsed")
        framed = raw.select(*kept, *added).select("*", parsed)
        columns = [F.col("_parsed").getField(f.name).alias(f.name) for f in schema.fields]
        reason = reason.when(
            F.col("_parsed").isNull() | F.col(f"_parsed.{CORRUPT}").isNotNull(),
            F.lit(f"the value is not JSON of {schema.simpleString()}"),
        )
        for field in schema.fields:
            if not field.nullable:
                reason = reason.when(F.col(f"_parsed.{field.name}").isNull(), F.lit(f"field {field.name} is missing"))
    else:
        framed = raw.select(*kept, *added)
        if isinstance(source.value, Text):
            valid = F.is_valid_utf8(F.col("_value").cast("string"))
            reason = reason.when(~valid, F.lit("the value is not UTF-8"))
        columns = [F.col("_value").cast(schema.fields[0].dataType).alias(schema.fields[0].name)]
    if key is not None:
        reason = reason.when(F.col(key).isNull(), F.lit("the key is null"))
    names = [] if key is None else [key]
    letter = F.struct(
        *SOURCE_COLUMNS, F.col("_key").alias("key"), F.col("_value").alias("value"), reason.alias("reason")
    )
    return framed.select(
        *names, *columns, "event_time", *SOURCE_COLUMNS, F.when(reason.isNotNull(), letter).alias(MALFORMED)
    )


def observed(parsed: DataFrame, name: str) -> DataFrame:
    """The good rows. Metric `name` observes `rows`, the count of all, and `malformed`, the others, in the same job."""
    counts = F.count(F.lit(1)).alias("rows"), F.collect_list(MALFORMED).alias("malformed")
    return parsed.observe(name, *counts).where(F.col(MALFORMED).isNull()).drop(MALFORMED)


def read_stream(
    spark: SparkSession,
    settings: Settings,
    source: Input,
    start: Mapping[int, int],
    max_records: int,
) -> DataFrame:
    """The raw stream of one input, Kafka's columns. Without a checkpoint it starts at `start` (partition -> offset)."""
    return (
        spark.readStream.format("kafka")
        .options(**spark_kafka_options(settings))
        .option("subscribe", source.topic)
        .option("startingOffsets", json.dumps({source.topic: {str(p): o for p, o in start.items()}}))
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", max_records)
        .load()
    )


def read_range(
    spark: SparkSession, settings: Settings, topic: str, start: Mapping[int, int], end: Mapping[int, int]
) -> DataFrame:
    """Committed records of a topic with their headers, from `start` to `end` (exclusive) of each partition."""
    partitions = [p for p in sorted(end) if end[p] > start.get(p, 0)]
    if not partitions:
        schema = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, headers array<struct<key string, value binary>>"
        return nothing(spark, ddl_columns(schema))
    return (
        spark.read.format("kafka")
        .options(**spark_kafka_options(settings))
        .option("assign", json.dumps({topic: partitions}))
        .option("startingOffsets", json.dumps({topic: {str(p): start.get(p, 0) for p in partitions}}))
        .option("endingOffsets", json.dumps({topic: {str(p): end[p] for p in partitions}}))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
    )


def result_of(app: App, frames: Mapping[str, DataFrame], settings: Mapping[str, Any]) -> DataFrame:
    """The app's result on `frames` (by input name), watermark set. Raises BadUsage if the result can't be written."""
    marked = {
        name: frame.withWatermark("event_time", app.watermark) if app.watermark else frame
        for name, frame in frames.items()
    }
    result: Any = app.function(**marked, settings=AppSettings({**app.settings, **settings}))
    if not isinstance(result, DataFrame):
        raise BadUsage(
            f"app {app.name} returned {type(result).__name__}, not a DataFrame", fix="return the result as a DataFrame"
        )
    missing = [name for name in app.result.key if name not in result.columns]
    if missing:
        raise BadUsage(
            f"the result of app {app.name} lacks the key column {', '.join(missing)}; it has {', '.join(result.columns)}",
            fix="select the key columns in the function, or name other ones in the definition",
        )
    if len(set(result.columns)) != len(result.columns):
        raise BadUsage(
            f"the result of app {app.name} has a column twice: {', '.join(result.columns)}", fix="rename one"
        )
    if not value_columns(app, result.columns):
        raise BadUsage(f"the result of app {app.name} has no column besides its key", fix="select a value, too")
    return result


def carries_source(app: App, columns: list[str]) -> bool:
    """Whether rows of this result name the record that they came from."""
    return isinstance(app.result, AppendStream) and all(name in columns for name in SOURCE_COLUMNS)


def value_columns(app: App, columns: list[str]) -> list[str]:
    """The columns of the result that form the record's value, in the function's order."""
    left_out = {*app.result.key, *(SOURCE_COLUMNS if carries_source(app, columns) else ())}
    return [name for name in columns if name not in left_out]


def serialised(app: App, result: DataFrame) -> DataFrame:
    """Rows -> `key`, `value` (JSON text; a null value is a tombstone) and `source` (topic:partition:offset or null)."""
    values = value_columns(app, result.columns)
    as_json = {"ignoreNullFields": "false"}
    value = F.to_json(F.struct(*values), as_json)
    if not isinstance(app.result, AppendStream):
        empty = F.lit(True)
        for name in values:
            empty = empty & F.col(f"`{name}`").isNull()
        value = F.when(~empty, value)
    source = F.concat_ws(":", *SOURCE_COLUMNS) if carries_source(app, result.columns) else F.lit(None).cast("string")
    return result.select(
        F.to_json(F.struct(*app.result.key), as_json).alias("key"), value.alias("value"), source.alias("source")
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
