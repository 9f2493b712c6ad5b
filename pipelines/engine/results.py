"""What an app's function returns: it is checked, and its rows become the records of its results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pipelines.engine import avro
from pipelines.engine.avro import encoded, require_columns
from pipelines.engine.origins import lines_kept
from pipelines.engine.plain_json import to_json
from pipelines.errors import BadUsage
from pipelines.model.app import App, AppendStream, AppSettings, Result, Table
from pipelines.model.names import SOURCE_COLUMNS, quoted


def result_of(app: App, frames: Mapping[str, DataFrame], settings: Mapping[str, Any]) -> DataFrame:
    """The function's result on `frames` by input name, watermark set. Raises BadUsage if it isn't a DataFrame."""
    given = {name: marked(app, frame) if name in app.sources else frame for name, frame in frames.items()}
    return applied(app, given, settings)


def marked(app: App, frame: DataFrame) -> DataFrame:
    """A source's frame with the app's watermark, if it has one."""
    return frame.withWatermark("event_time", app.watermark) if app.watermark else frame


def applied(app: App, frames: Mapping[str, DataFrame], settings: Mapping[str, Any]) -> DataFrame:
    """The function's result on `frames`, as they are. Raises BadUsage if it isn't a DataFrame that the app's result can be."""
    _refuse_other_parameters(app, frames)
    with lines_kept():
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


def _refuse_other_parameters(app: App, frames: Mapping[str, DataFrame]) -> None:
    """Raises BadUsage if the function can't be called with the app's inputs and settings, by name."""
    signature = inspect.signature(app.function)
    try:
        signature.bind(**frames, settings=None)
    except TypeError as error:
        raise BadUsage(
            f"the function of app {app.name} has the parameters {', '.join(signature.parameters) or 'none'}; "
            f"the inputs of the app are {', '.join(frames)}",
            fix=f"write def {app.function.__name__}({', '.join([*frames, 'settings'])})",
        ) from error


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
    return serializer(app)(result)


def serializer(app: App) -> Callable[[DataFrame], DataFrame]:
    """`serialized` for the batches of one query. It makes Spark's columns once, since that takes a hundred calls of the JVM."""
    columns: list[Column] = []

    def records(result: DataFrame) -> DataFrame:
        if not columns:
            columns.extend(_columns(app, schemas_of(app, result.schema)))
        chosen = result.select(*columns)
        return chosen.where(F.col("record").isNotNull()).select("record.*") if app.has_several else chosen

    return records


def _columns(app: App, schemas: Mapping[str, StructType]) -> list[Column]:
    """Key, value and source; or, if the app has several results, one struct column of them and the result's name."""
    if not app.has_several:
        return _record(app, "", schemas[""].names)
    records = [
        F.when(
            F.col(quoted(name)).isNotNull(),
            F.struct(*_record(app, name, columns.names), F.lit(name).alias("result")),
        )
        for name, columns in schemas.items()
    ]
    # null where a row is none of that result; a filter within the array would be interpreted, and so would all that it reads
    return [F.explode(F.array(*records)).alias("record")]


def _record(app: App, name: str, columns: list[str]) -> list[Column]:
    """Key, value and source of a record of result `name`, whose columns are in a struct if it has a name."""
    result = app.results[name]

    def column(each: str) -> Column:
        return F.col(f"{quoted(name)}.{quoted(each)}" if name else quoted(each))

    def as_json(names: Iterable[str]) -> Column:
        return to_json(F.struct(*(column(each).alias(each) for each in names)))

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
