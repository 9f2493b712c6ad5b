"""DataFrames from records: parses inputs, and sets malformed records apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import and_
from typing import Literal

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipelines.engine.avro import avro_columns, decoded
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.plain_json import from_json, is_utf8
from pipelines.engine.spark_conf import spark_kafka_options
from pipelines.errors import BadUsage
from pipelines.model.app import (
    App,
    Avro,
    Changelog,
    Input,
    Json,
    Raw,
    Source,
    StaticTable,
    Text,
    Value,
)
from pipelines.model.names import SOURCE_COLUMNS, quoted
from pipelines.model.positions import SourcePosition
from pipelines.model.tables import TABLE_KEY
from pipelines.settings import Settings

CORRUPT = "_corrupt"
MALFORMED = "_malformed"
# as Spark reads the delay of a watermark
_DAYS_PER_MONTH = 31
_AHEAD = "past the record's own timestamp by more than the delay of the watermark"
_ADDED = "event_time timestamp, topic string, partition int, offset long"
# the columns that every input has
GIVEN = ("event_time", *SOURCE_COLUMNS)
_DELETED = "deleted boolean"


def ddl_columns(ddl: str) -> StructType:
    """The columns of a DDL such as 'side string, price double'. Raises BadUsage if it describes no columns."""
    found = StructType.fromDDL(ddl)
    if not isinstance(found, StructType):
        raise BadUsage(f"{ddl!r} is one type, not columns", fix="write columns, such as 'side string, price double'")
    return found


def value_schema(source: Input) -> StructType:
    """Columns of an input's value. Raises BadUsage if its DDL can't be parsed."""
    if isinstance(source.value, Text):
        return ddl_columns(f"{quoted(source.value.column)} string")
    if isinstance(source.value, Raw):
        return ddl_columns(f"{quoted(source.value.column)} binary")
    if isinstance(source.value, Avro):
        return avro_columns(source.value.schema)
    return _columns_of(source.value)


def _columns_of(value: Json) -> StructType:
    fields = json_schema(value).fields
    if unknown := [name for name in value.rename if name not in {field.name for field in fields}]:
        raise BadUsage(
            f"rename names {', '.join(unknown)}, which is no field of {value.schema!r}",
            fix="correct the name in rename",
        )
    return StructType([StructField(value.rename.get(f.name, f.name), f.dataType, f.nullable) for f in fields])


def json_schema(value: Json) -> StructType:
    """The fields of a JSON object, by their own names. Raises BadUsage if its DDL can't be parsed."""
    try:
        return ddl_columns(value.schema)
    except Exception as error:
        raise BadUsage(
            f"schema {value.schema!r} is not Spark DDL: {_first_line(error)}",
            fix="as in 'side string, price double'",
        ) from error


def key_schema(source: Input) -> StructType:
    """Columns of an input's key: none where the app doesn't ask for it.

    Raises BadUsage if its DDL can't be parsed, and if a key that isn't JSON is not a single string column.
    """
    if source.key is None:
        return StructType([])
    if isinstance(source.key, Json):
        return _columns_of(source.key)
    fields = ddl_columns(source.key).fields
    if len(fields) != 1 or not isinstance(fields[0].dataType, StringType):
        raise BadUsage(
            f"key {source.key!r} is not a single string column",
            fix="use one, as in key='ticker string', or key=Json('...') for keys that are JSON objects",
        )
    return StructType(fields)


def input_columns(name: str, source: Input) -> StructType:
    """All columns that an app's function gets of input `name`: key, value, event_time, topic, partition, offset; of a
    changelog also `deleted`; of a static table only key and value.

    Raises BadUsage if two have one name, or as `key_schema` and `value_schema` do.
    """
    try:
        fields = [*key_schema(source).fields, *value_schema(source).fields]
    except BadUsage as error:
        raise BadUsage(f"input {name}: {error.what}", fix=error.fix) from error
    given: list[StructField] = []
    if not isinstance(source, StaticTable):
        _require_time(name, source)
        given = ddl_columns(f"{_DELETED}, {_ADDED}" if isinstance(source, Changelog) else _ADDED).fields
    seen = {field.name.lower() for field in given}
    for field in fields:
        if field.name.lower() in seen:
            listed = ", ".join(each.name for each in given)
            raise BadUsage(
                f"input {name} would have two columns named {field.name}"
                + (f"; {listed} are given with each record" if listed else ""),
                fix=f'give the field another name, as in Json("...", rename={{"{field.name}": "my_{field.name}"}})',
            )
        seen.add(field.name.lower())
    return StructType([*fields, *given])


def _require_time(name: str, source: Source) -> None:
    """Raises BadUsage if the field that should be an input's event time can't be that."""
    if source.time is None:
        return
    fields = json_schema(source.value) if isinstance(source.value, Json) else value_schema(source)
    found = next((field for field in fields.fields if field.name == source.time), None)
    if found is None or found.nullable or not isinstance(found.dataType, TimestampType):
        raise BadUsage(
            f"input {name} takes its time from {source.time}, which is not a timestamp NOT NULL field of its value",
            fix=f'declare the field so, as in Json("{source.time} timestamp NOT NULL, ...")',
        )


def delay_of(app: App) -> int | None:
    """The delay of the app's watermark in milliseconds, as Spark reads it; None without one. Needs a Spark session.

    Raises BadUsage if it is no interval.
    """
    if app.watermark is None:
        return None
    intervals = java_class("org.apache.spark.sql.catalyst.util.IntervalUtils")
    text = java_class("org.apache.spark.unsafe.types.UTF8String").fromString(app.watermark)
    unit = java_class("java.util.concurrent.TimeUnit").MILLISECONDS
    try:
        return int(intervals.getDuration(intervals.stringToInterval(text), unit, _DAYS_PER_MONTH))
    except (PySparkException, Py4JJavaError) as error:
        raise BadUsage(
            f"the watermark of app {app.name}, {app.watermark!r}, is not an interval", fix='write it like "10 seconds"'
        ) from error


def nothing(spark: SparkSession, schema: StructType) -> DataFrame:
    """A frame with these columns, no rows and one partition.

    Not `createDataFrame([], schema)`: a Python worker would read it, which takes seconds to start. And Spark leaves a frame
    that it knows to be empty out of the plan.
    """
    session, context = spark._jsparkSession, spark.sparkContext
    rows = context._jsc.parallelize(java_class("java.util.ArrayList")(), 1)
    return DataFrame(session.createDataFrame(rows, session.parseDataType(schema.json())), spark)


def parse(raw: DataFrame, source: Source, delay_ms: int | None = None) -> DataFrame:
    """Kafka's columns -> the input's columns and `_malformed`, which is null for a good record. `delay_ms`: that of the
    app's watermark.

    Of a malformed one that is a struct: topic, partition, offset, key and value (bytes as they came), reason. The reason
    is only `key` or `value` where the JSON of that part does not fit its schema: `metrics.reason_of` then says what does
    not.
    """
    kept = [F.col("key").alias("_key"), F.col("value").alias("_value")]
    added = [F.col("timestamp").alias("event_time"), *(F.col(name) for name in SOURCE_COLUMNS)]
    framed = raw.select(*kept, *added)
    is_table, no_value = isinstance(source, Changelog), F.col("_value").isNull()
    reason = F.when(F.lit(False) if is_table else no_value, F.lit("the value is null"))
    columns: list[Column] = []
    if source.key is not None:
        reason = reason.when(F.col("_key").isNull(), F.lit("the key is null"))
        reason = reason.when(~is_utf8(F.col("_key")), F.lit("the key is not UTF-8"))
        framed, reason, columns = _read(framed, "key", source.key, key_schema(source), reason)
    if is_table:
        # good, whatever its value should be: it deletes its key
        reason = reason.when(no_value, F.lit(None).cast("string"))
    if not isinstance(source.value, Raw | Avro):
        reason = reason.when(~is_utf8(F.col("_value")), F.lit("the value is not UTF-8"))
    framed, reason, more = _read(framed, "value", source.value, value_schema(source), reason)
    time = _time_of(source)
    if source.time is not None and delay_ms is not None:
        # it would move the watermark past the time of other records. A replay decides alike: both times are the record's
        stamped = F.col("event_time")
        ahead = time > stamped + F.expr(f"INTERVAL {delay_ms} MILLISECONDS")
        # the oldest format of records has no timestamp
        is_stamped = stamped >= F.timestamp_millis(F.lit(0))
        reason = reason.when(is_stamped & ahead, F.lit(f"field {source.time} is too far in the future: {_AHEAD}"))
    letter = F.struct(
        *SOURCE_COLUMNS, F.col("_key").alias("key"), F.col("_value").alias("value"), reason.alias("reason")
    )
    # by this, `as_of` knows a table and its key, whatever the function has selected since
    of_table = {TABLE_KEY: key_schema(source).names}
    deleted = [no_value.alias("deleted", metadata=of_table)] if is_table else []
    malformed = F.when(reason.isNotNull(), letter).alias(MALFORMED)
    return framed.select(*columns, *more, *deleted, time.alias("event_time"), *SOURCE_COLUMNS, malformed)


def _time_of(source: Source) -> Column:
    """The event time: the record's timestamp, or the field of its value that the input names."""
    stamped = F.col("event_time")
    if source.time is None:
        return stamped
    return F.coalesce(F.col("_parsed_value").getField(source.time), stamped)


def _read(
    framed: DataFrame, part: Literal["key", "value"], as_: Value | str, columns: StructType, reason: Column
) -> tuple[DataFrame, Column, list[Column]]:
    """Reads a record's key or value: the frame with what was parsed, the reason if it can't be read, and its columns."""
    if isinstance(as_, Avro):
        return _read_avro(framed, as_, columns, reason)
    if not isinstance(as_, Json):
        return framed, reason, [F.col(f"_{part}").cast(f.dataType).alias(f.name) for f in columns.fields]
    parsed, schema = f"_parsed_{part}", json_schema(as_)
    framed = framed.select("*", from_json(F.col(f"_{part}").cast("string"), schema, CORRUPT).alias(parsed))
    reason = reason.when(
        F.col(parsed).isNull() | F.col(f"{parsed}.{CORRUPT}").isNotNull(),
        F.lit(part),
    )
    read = [F.col(parsed).getField(field.name) for field in schema.fields]
    for field, column in zip(schema.fields, read, strict=True):
        for wrong, why in _faults(column, field.name, field.dataType, field.nullable):
            reason = reason.when(wrong, F.lit(why if part == "value" else f"{why} in the key"))
    return framed, reason, [column.alias(f.name) for column, f in zip(read, columns.fields, strict=True)]


def _read_avro(
    framed: DataFrame, as_: Avro, columns: StructType, reason: Column
) -> tuple[DataFrame, Column, list[Column]]:
    """As `_read`, for an Avro value. Spark reads one that does not fit as a record of nulls."""
    parsed = "_parsed_value"
    framed = framed.select("*", decoded(F.col("_value"), as_.schema).alias(parsed))
    read = [F.col(parsed).getField(field.name) for field in columns.fields]
    missing = [c for c, field in zip(read, columns.fields, strict=True) if not field.nullable]
    wrong = F.col(parsed).isNull() | reduce(and_, (column.isNull() for column in read))
    for column in missing:
        wrong = wrong | column.isNull()
    reason = reason.when(wrong, F.lit("the value is not Avro of its schema"))
    return framed, reason, [column.alias(f.name) for column, f in zip(read, columns.fields, strict=True)]


def _faults(column: Column, path: str, kind: DataType, nullable: bool) -> Iterator[tuple[Column, str]]:
    """What makes a record malformed although its JSON has the types of its schema, each with the reason."""
    if not nullable:
        yield column.isNull(), f"field {path} is missing"
    if isinstance(kind, DoubleType | FloatType):
        # JSON has no such number, and a sum with one would never be another again
        yield F.isnan(column) | (F.abs(column) == float("inf")), f"field {path} is too large a number"
    elif isinstance(kind, StructType):
        for field in kind.fields:
            for wrong, why in _faults(
                column.getField(field.name), f"{path}.{field.name}", field.dataType, field.nullable
            ):
                # where the struct itself is null, it has no fields that could be missing
                yield column.isNotNull() & wrong, why
    elif isinstance(kind, ArrayType):
        for wrong, why in _faults_within(column, f"{path}[]", kind.elementType, kind.containsNull):
            yield wrong, why
    elif isinstance(kind, MapType):
        values = F.map_values(column)
        for wrong, why in _faults_within(values, f"{path}{{}}", kind.valueType, kind.valueContainsNull):
            yield wrong, why


def _faults_within(column: Column, path: str, kind: DataType, nullable: bool) -> Iterator[tuple[Column, str]]:
    """The faults of the elements of an array."""

    def has(number: int) -> Column:
        # made again for each fault: `exists` hands its function a variable of its own
        return F.exists(column, lambda element: list(_faults(element, path, kind, nullable))[number][0])

    for number, (_, why) in enumerate(_faults(F.lit(None), path, kind, nullable)):
        yield has(number), why


def observed(parsed: DataFrame, name: str) -> DataFrame:
    """The good rows. Metric `name` observes `rows`, the count of all, and `malformed`, the others, in the same job."""
    counts = F.count(F.lit(1)).alias("rows"), F.collect_list(MALFORMED).alias("malformed")
    return parsed.observe(name, *counts).where(F.col(MALFORMED).isNull()).drop(MALFORMED)


def read_stream(
    spark: SparkSession,
    settings: Settings,
    source: Source,
    start: Mapping[int, int],
    max_records: int,
) -> DataFrame:
    """The raw stream of one input, Kafka's columns. Without a checkpoint it starts at `start` (partition -> offset)."""
    return (
        spark.readStream.format("kafka")
        .options(**spark_kafka_options(settings))
        .option("subscribe", str(source.topic))
        .option("startingOffsets", json.dumps({str(source.topic): {str(p): o for p, o in start.items()}}))
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", max_records)
        .load()
    )


def input_streams(
    spark: SparkSession,
    settings: Settings,
    app: App,
    start: SourcePosition,
    limits: Mapping[str, int],
) -> dict[str, DataFrame]:
    """The streams that an app's function gets, by source: parsed, good rows only, observed by the source's name.

    `start`: as for `read_stream`. `limits`: source -> the most records of a batch.
    """
    delay_ms = delay_of(app)
    raw = {
        name: read_stream(spark, settings, source, start.sources.get(name, {}), limits[name])
        for name, source in app.sources.items()
    }
    return {name: observed(parse(raw[name], source, delay_ms), name) for name, source in app.sources.items()}


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


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
