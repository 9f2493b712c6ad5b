"""Inputs that are results of other apps: what a definition says of them, and whether their columns can be read so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pyspark.errors import ParseException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from pipelines.engine.frames import ddl_columns, json_schema
from pipelines.errors import BadUsage
from pipelines.model.app import App, Avro, Changelog, Input, Json, Raw, Value

Encoding = Literal["JSON", "Avro", "text", "bytes"]

# whole numbers -> how many digits they may have
_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
# what Spark reads from a JSON text; whether each text is one, the type does not say
_IN_TEXT = DateType | TimestampType | TimestampNTZType | BinaryType | DecimalType


def upstream_of(app: App) -> dict[str, dict[str, Any]]:
    """Source -> what it reads of another app, as JSON.

    `app`, `result`; whether as a `table`; `key_as`, the encoding of its keys, None: it does not ask for them; `value_as`,
    that of its values; `key` and `value`, the fields that it reads of JSON; `avro`: the Avro schema that it reads with.
    """
    return {
        name: {
            "app": of.app,
            "result": of.result,
            "table": isinstance(source := app.inputs[name], Changelog),
            "key_as": _key_encoding(source),
            "key": _names(source.key),
            "value_as": _encoding(source.value),
            "value": _names(source.value),
            "avro": source.value.schema if isinstance(source.value, Avro) else None,
        }
        for name, of in app.upstream.items()
    }


def refuse_other_types(app: App, results: Mapping[str, str]) -> None:
    """Raises BadUsage if an input declares a type that its column can't be read as. `results`: source -> the columns of the
    result that it reads, Spark DDL. Needs a Spark session.
    """
    for name, ddl in results.items():
        source, of = app.inputs[name], app.upstream[name]
        try:
            written = {field.name: field.dataType for field in ddl_columns(ddl).fields}
        except ParseException:
            # Spark can't read back the name of a field within a struct; then nothing is known of the types
            continue
        for field in (*_fields(source.key), *_fields(source.value)):
            kind = written.get(field.name)
            if kind is not None and not reads(kind, field.dataType):
                raise BadUsage(
                    f"input {name} of {app.name} declares {field.name} as {field.dataType.simpleString()}, but in the "
                    f"{of} it is {kind.simpleString()}",
                    fix=f"declare it so, as in Json({f'{field.name} {kind.simpleString()}'!r})",
                )


def reads(written: DataType, declared: DataType) -> bool:
    """Whether a value of type `written`, as JSON, is also one of type `declared`: each value, or a text that may be one."""
    if isinstance(declared, StringType | VariantType) or isinstance(written, VariantType):
        return True
    match written, declared:
        case StructType(), StructType():
            types = {field.name: field.dataType for field in written.fields}
            return all(f.name in types and reads(types[f.name], f.dataType) for f in declared.fields)
        case StructType(), MapType(keyType=StringType()):
            return all(reads(field.dataType, declared.valueType) for field in written.fields)
        case MapType(), StructType():
            return all(reads(written.valueType, field.dataType) for field in declared.fields)
        case MapType(), MapType():
            return isinstance(declared.keyType, StringType) and reads(written.valueType, declared.valueType)
        case ArrayType(), ArrayType():
            return reads(written.elementType, declared.elementType)
    return written == declared or _reads_plain(written, declared)


def _reads_plain(written: DataType, declared: DataType) -> bool:
    """`reads`, for different types that have no others within."""
    match written:
        case StringType():
            return isinstance(declared, _IN_TEXT)
        case DateType():
            return isinstance(declared, TimestampType | TimestampNTZType)
        case TimestampType():
            return isinstance(declared, DateType)
        case TimestampNTZType():
            return isinstance(declared, DateType | TimestampType)
        case FloatType():
            return isinstance(declared, DoubleType)
        case DecimalType():
            if written.scale == 0 and written.precision < _DIGITS.get(_whole(declared), 0):
                return True
            return isinstance(declared, FloatType | DoubleType) or _fits(written.precision, written.scale, declared)
    digits = _DIGITS.get(type(written))
    if digits is None:
        return False
    return (
        isinstance(declared, FloatType | DoubleType)
        or digits <= _DIGITS.get(_whole(declared), 0)
        or _fits(digits, 0, declared)
    )


def _whole(declared: DataType) -> type[DataType]:
    """The type of the whole numbers that can be read as `declared`: a timestamp is in seconds."""
    return LongType if isinstance(declared, TimestampType) else type(declared)


def _fits(precision: int, scale: int, declared: DataType) -> bool:
    """Whether a number of this many digits, `scale` of them after the point, is a number of type `declared`."""
    if not isinstance(declared, DecimalType):
        return False
    return scale <= declared.scale and precision - scale <= declared.precision - declared.scale


def _key_encoding(source: Input) -> Encoding | None:
    return None if source.key is None else "JSON" if isinstance(source.key, Json) else "text"


def _encoding(value: Value) -> Encoding:
    if isinstance(value, Json):
        return "JSON"
    return "Avro" if isinstance(value, Avro) else "bytes" if isinstance(value, Raw) else "text"


def _fields(part: Value | str | None) -> Iterator[StructField]:
    """The fields of a key or a value that is JSON, by their own names."""
    if isinstance(part, Json):
        yield from json_schema(part).fields


def _names(part: Value | str | None) -> list[str]:
    return [field.name for field in _fields(part)]
