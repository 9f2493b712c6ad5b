"""DataFrames in and out: parses records, sets malformed ones apart, and serializes rows by key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import and_
from typing import Any, Literal

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

from pipelines.engine import avro
from pipelines.engine.avro import avro_columns, decoded, encoded, require_columns
from pipelines.engine.session import spark_kafka_options
from pipelines.errors import BadUsage
from pipelines.model.app import (
    App,
    AppendStream,
    AppSettings,
    Avro,
    Changelog,
    Input,
    Json,
    Raw,
    Result,
    Table,
    Text,
    Value,
)
from pipelines.model.as_of import TABLE_KEY
from pipelines.model.names import SOURCE_COLUMNS
from pipelines.settings import Settings

CORRUPT = "_corrupt"
MALFORMED = "_malformed"
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


def quoted(name: str) -> str:
    """A column's name as Spark reads it as a name, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def key_schema(source: Input) -> StructType:
    """Columns of an input's key: none where the app doesn't ask for it.

    Raises BadUsage if its DDL can't be parsed, and if a key that isn't JSON is not one string column.
    """
    if source.key is None:
        return StructType([])
    if isinstance(source.key, Json):
        return _columns_of(source.key)
    fields = ddl_columns(source.key).fields
    if len(fields) != 1 or not isinstance(fields[0].dataType, StringType):
        raise BadUsage(
            f"key {source.key!r} is not one string column",
            fix="use one, as in key='ticker string', or key=Json('...') for keys that are JSON objects",
        )
    return StructType(fields)


def input_columns(name: str, source: Input) -> StructType:
    """All columns that an app's function gets of input `name`: key, value, event_time, topic, partition, offset; of a
    changelog also `deleted`.

    Raises BadUsage if two have one name.
    """
    fields = [*key_schema(source).fields, *value_schema(source).fields]
    _require_time(name, source)
    given = ddl_columns(f"{_DELETED}, {_ADDED}" if isinstance(source, Changelog) else _ADDED).fields
    seen = {field.name.lower() for field in given}
    for field in fields:
        if field.name.lower() in seen:
            raise BadUsage(
                f"input {name} would have two columns named {field.name}; "
                f"{', '.join(each.name for each in given)} are given with each record",
                fix=f'give the field another name, as in Json("...", rename={{"{field.name}": "my_{field.name}"}})',
            )
        seen.add(field.name.lower())
    return StructType([*fields, *given])


def _require_time(name: str, source: Input) -> None:
    """Raises BadUsage if the field that should be an input's event time can't be that."""
    if source.time is None:
        return
    fields = json_schema(source.value) if isinstance(source.value, Json) else value_schema(source)
    found = next((field for field in fields.fields if field.name == source.time), None)
    if found is None or found.nullable or not isinstance(found.dataType, TimestampType):
        raise BadUsage(
            f"the time of input {name}, {source.time}, is not a field of its value that is a timestamp NOT NULL",
            fix=f'declare it so, as in Json("{source.time} timestamp NOT NULL, ...")',
        )


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

    Of a malformed one that is a struct: topic, partition, offset, key and value (bytes as they came), reason. The reason
    is empty where the JSON does not fit its schema: `misfit.misfit` then says what does not.
    """
    kept = [F.col("key").alias("_key"), F.col("value").alias("_value")]
    added = [F.col("timestamp").alias("event_time"), *(F.col(name) for name in SOURCE_COLUMNS)]
    framed = raw.select(*kept, *added)
    is_table, no_value = isinstance(source, Changelog), F.col("_value").isNull()
    reason = F.when(F.lit(False) if is_table else no_value, F.lit("the value is null"))
    columns: list[Column] = []
    if source.key is not None:
        reason = reason.when(F.col("_key").isNull(), F.lit("the key is null"))
        reason = reason.when(~F.is_valid_utf8(F.col("_key").cast("string")), F.lit("the key is not UTF-8"))
        framed, reason, columns = _read(framed, "key", source.key, key_schema(source), reason)
    if is_table:
        # good, whatever its value should be: it deletes its key
        reason = reason.when(no_value, F.lit(None).cast("string"))
    if not isinstance(source.value, Raw | Avro):
        reason = reason.when(~F.is_valid_utf8(F.col("_value").cast("string")), F.lit("the value is not UTF-8"))
    framed, reason, more = _read(framed, "value", source.value, value_schema(source), reason)
    letter = F.struct(
        *SOURCE_COLUMNS, F.col("_key").alias("key"), F.col("_value").alias("value"), reason.alias("reason")
    )
    # by this, `as_of` knows a table and its key, whatever the function has selected since
    of_table = {TABLE_KEY: key_schema(source).names}
    deleted = [no_value.alias("deleted", metadata=of_table)] if is_table else []
    malformed = F.when(reason.isNotNull(), letter).alias(MALFORMED)
    return framed.select(*columns, *more, *deleted, _time_of(source), *SOURCE_COLUMNS, malformed)


def _time_of(source: Input) -> Column:
    """The event time: the record's timestamp, or the field of its value that the input names."""
    stamped = F.col("event_time")
    if source.time is None:
        return stamped
    return F.coalesce(F.col("_parsed_value").getField(source.time), stamped).alias("event_time")


def _read(
    framed: DataFrame, part: Literal["key", "value"], as_: Value | str, columns: StructType, reason: Column
) -> tuple[DataFrame, Column, list[Column]]:
    """Reads a record's key or value: the frame with what was parsed, the reason if it can't be read, and its columns."""
    if isinstance(as_, Avro):
        return _read_avro(framed, as_, columns, reason)
    if not isinstance(as_, Json):
        return framed, reason, [F.col(f"_{part}").cast(f.dataType).alias(f.name) for f in columns.fields]
    parsed, schema = f"_parsed_{part}", json_schema(as_)
    wanted = StructType([*schema.fields, *ddl_columns(f"{CORRUPT} string").fields])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "allowNonNumericNumbers": "false"}
    framed = framed.select("*", F.from_json(F.col(f"_{part}").cast("string"), wanted, options).alias(parsed))
    reason = reason.when(
        F.col(parsed).isNull() | F.col(f"{parsed}.{CORRUPT}").isNotNull(),
        F.lit("" if part == "value" else f"the key is not JSON of {schema.simpleString()}"),
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
        # made anew for each fault: `exists` hands its function a variable of its own
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
    source: Input,
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
    """The function's result on `frames` by input name, watermark set. Raises BadUsage if it isn't a DataFrame."""
    return applied(app, {name: marked(app, frame) for name, frame in frames.items()}, settings)


def marked(app: App, frame: DataFrame) -> DataFrame:
    """An input's frame with the app's watermark, if it has one."""
    return frame.withWatermark("event_time", app.watermark) if app.watermark else frame


def applied(app: App, frames: Mapping[str, DataFrame], settings: Mapping[str, Any]) -> DataFrame:
    """The function's result on `frames`, as they are. Raises BadUsage if it isn't a DataFrame that the app's result can be."""
    result: Any = app.function(**frames, settings=AppSettings({**app.settings, **settings}))
    if not isinstance(result, DataFrame):
        raise BadUsage(
            f"app {app.name} returned {type(result).__name__}, not a DataFrame", fix="return the result as a DataFrame"
        )
    for name, columns in schemas_of(app, result.schema).items():
        _check_columns(
            f"result {name} of app {app.name}" if name else f"the result of app {app.name}",
            app.results[name],
            columns,
        )
    return result


def schemas_of(app: App, whole: StructType) -> dict[str, StructType]:
    """Result name -> its columns; `whole`: those of what the function returns. Raises BadUsage if that is not a struct
    column for each of several results.
    """
    if not app.has_several:
        return {"": whole}
    _require_names(app, whole.names)
    for field in whole.fields:
        if not isinstance(field.dataType, StructType):
            raise BadUsage(
                f"the function of app {app.name} returns {field.name} as {field.dataType.simpleString()}, not as a struct",
                fix=f'make it one of the columns of that result: F.struct("a", "b").alias("{field.name}")',
            )
    found = {field.name: field.dataType for field in whole.fields}
    return {name: found[name] for name in app.results}  # type: ignore[misc]


def _require_names(app: App, columns: list[str]) -> None:
    if sorted(columns) != sorted(app.results):
        raise BadUsage(
            f"the function of app {app.name} returns the columns {', '.join(columns)}, but its results are {', '.join(app.results)}",
            fix='return a struct column of each result\'s name, as F.struct("key", "count").alias("counts")',
        )


def _check_columns(what: str, result: Result, whole: StructType) -> None:
    columns = whole.names
    missing = [name for name in result.key if name not in columns]
    if missing:
        raise BadUsage(
            f"{what} lacks the key column {', '.join(missing)}; it has {', '.join(columns)}",
            fix="select the key columns in the function, or name other ones in the definition",
        )
    if len(set(columns)) != len(columns):
        raise BadUsage(f"{what} has a column twice: {', '.join(columns)}", fix="rename one")
    values = value_columns(result, columns)
    if not values:
        raise BadUsage(f"{what} has no column besides its key", fix="select a value, too")
    if (schema := avro_of(result)) is not None:
        require_columns(what, schema, StructType([whole[name] for name in values]))


def avro_of(result: Result) -> str | None:
    """The Avro schema of a result's values; None: they are JSON."""
    return result.avro if isinstance(result, AppendStream) else None


def carries_source(result: Result, columns: list[str]) -> bool:
    """Whether rows of this result name the record that they came from."""
    return isinstance(result, AppendStream) and all(name in columns for name in SOURCE_COLUMNS)


def value_columns(result: Result, columns: list[str]) -> list[str]:
    """The columns of the result that form the record's value, in the function's order."""
    left_out = {*result.key, *(SOURCE_COLUMNS if carries_source(result, columns) else ())}
    return [name for name in columns if name not in left_out]


def serialized(app: App, result: DataFrame) -> DataFrame:
    """The records of a batch: `key` (JSON text, null without a key), `value` (JSON text; a null value is a tombstone; bytes
    if the app has an Avro result), `source` (topic:partition:offset or null) and, if the app has several, `result`: the
    name of the record's.
    """
    schemas = schemas_of(app, result.schema)
    if not app.has_several:
        return result.select(*_record(app, "", schemas[""].names))
    records = [
        F.when(
            F.col(quoted(name)).isNotNull(),
            F.struct(*_record(app, name, columns.names), F.lit(name).alias("result")),
        )
        for name, columns in schemas.items()
    ]
    each = F.explode(F.filter(F.array(*records), lambda record: record.isNotNull()))
    return result.select(each.alias("record")).select("record.*")


def _record(app: App, name: str, columns: list[str]) -> list[Column]:
    """Key, value and source of a record of result `name`, whose columns are in a struct if it has a name."""
    result = app.results[name]

    def column(each: str) -> Column:
        return F.col(f"{quoted(name)}.{quoted(each)}" if name else quoted(each))

    def as_json(names: Iterable[str]) -> Column:
        return F.to_json(F.struct(*(column(each).alias(each) for each in names)), {"ignoreNullFields": "false"})

    nothing = F.lit(None).cast("string")
    values = value_columns(result, columns)
    value = as_json(values)
    if (schema := avro_of(result)) is not None:
        value = encoded(F.struct(*(column(each).alias(each) for each in values)), schema)
    elif any(map(avro_of, app.results.values())):
        value = value.cast("binary")
    if isinstance(result, Table):
        empty = F.lit(True)
        for each in values:
            empty = empty & column(each).isNull()
        value = F.when(~empty, value)
    source = F.concat_ws(":", *map(column, SOURCE_COLUMNS)) if carries_source(result, columns) else nothing
    key = as_json(result.key) if result.key else nothing
    return [key.alias("key"), value.alias("value"), source.alias("source")]


def as_text(app: App, records: DataFrame) -> DataFrame:
    """What `serialized` returns, with the values of Avro results as JSON text."""
    schemas = {name: schema for name, result in app.results.items() if (schema := avro_of(result)) is not None}
    if not schemas:
        return records
    text = F.col("value").cast("string")
    for name, schema in schemas.items():
        mine = F.col("result") == name if name else F.lit(True)
        text = F.when(mine, avro.as_json(F.col("value"), schema)).otherwise(text)
    return records.withColumn("value", text)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
