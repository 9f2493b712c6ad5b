"""Avro values in and out, by Spark's own functions; what a schema means is asked of the JVM."""

from __future__ import annotations

import json
import re
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from pipelines.engine.jvm.classes import java_class
from pipelines.errors import BadUsage

# a value that can't be read becomes null, or a struct of nulls
_LENIENT = {"mode": "PERMISSIVE"}

# what Java puts before the message of an error that caused another one
_JAVA_CLASS = re.compile(r"^([\w$]+\.)+[\w$]+: ")


def avro_columns(schema: str) -> StructType:
    """The columns of an Avro record. Raises BadUsage if the schema isn't one of a record. Needs a Spark session."""
    try:
        parsed = _parsed(schema)
        kind = java_class("org.apache.spark.sql.avro.SchemaConverters").toSqlType(parsed).dataType()
    except Py4JJavaError as error:
        # below the first line is where Java read it from
        said = _JAVA_CLASS.sub("", str(error.java_exception.getMessage()).partition("\n")[0])
        raise BadUsage(f"this is not an Avro schema: {said}", fix="correct the schema's JSON") from error
    described = json.loads(kind.json())
    if not isinstance(described, dict) or described["type"] != "struct":
        raise BadUsage("the Avro schema is not the schema of a record", fix='use {"type": "record", ...}')
    return StructType.fromJson(described)


def decoded(value: Column, schema: str) -> Column:
    """Binary -> a struct of the record's fields; null if it is not such a record."""
    return from_avro(value, schema, _LENIENT)


def as_json(value: Column, schema: str) -> Column:
    """Binary -> the record as JSON text, with its null fields."""
    return F.to_json(decoded(value, schema), {"ignoreNullFields": "false"})


def encoded(record: Column, schema: str) -> Column:
    """A struct -> binary. Its fields must be those of the schema, see `require_columns`."""
    return to_avro(record, schema)


def require_columns(what: str, schema: str, columns: StructType) -> None:
    """Raises BadUsage if a record of these columns can't be written with an Avro schema: names and types must be equal."""
    wanted, given = (
        {field.name: _plain(field.dataType) for field in each.fields} for each in (avro_columns(schema), columns)
    )
    if wanted != given:
        said = ", ".join(f"{name} {kind.simpleString()}" for name, kind in wanted.items())
        has = ", ".join(f"{name} {kind.simpleString()}" for name, kind in given.items())
        raise BadUsage(
            f"{what} does not fit its Avro schema: the schema has {said}; the value has {has}",
            fix="select these columns with these types, or change the schema",
        )


def readable_by(reader: str, writer: str) -> str | None:
    """Why a consumer with the schema `reader` can't read values that were written with `writer`, by Avro's own rules;
    None: it can.
    """
    rules = java_class("org.apache.avro.SchemaCompatibility")
    found = rules.checkReaderWriterCompatibility(_parsed(reader), _parsed(writer))
    problems = found.getResult().getIncompatibilities()
    told = [f"{p.getMessage()} at {p.getLocation()}" for p in (problems.get(n) for n in range(problems.size()))]
    return "; ".join(told) or None


def _plain(kind: DataType) -> DataType:
    """A type in which nothing is nullable."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _plain(f.dataType)) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_plain(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_plain(kind.keyType), _plain(kind.valueType))
    return kind


def _parsed(schema: str) -> Any:
    return java_class("org.apache.avro.Schema$Parser")().parse(schema)
