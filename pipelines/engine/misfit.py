"""Why a JSON value does not fit its schema. Spark says only that it doesn't."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
)

_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
# see PlainJson.scala
_LONG_EXPONENT = re.compile(rb"[0-9][eE][+-]?[0-9]{5}")
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def misfit(value: bytes, schema: StructType) -> str:
    """The first thing in `value` that does not fit, for a person: `field price is not decimal(8,2)`.

    No part of the value is in it. If Python accepts the value as JSON of that schema and Spark doesn't, the text is
    general.
    """
    try:
        found = json.loads(value, parse_constant=_refuse, parse_float=Decimal)
    except UnicodeDecodeError:
        return "the value is not UTF-8"
    except json.JSONDecodeError as error:
        return f"the value is not JSON: {error.msg} at character {error.pos}"
    except (ValueError, RecursionError):
        return "the value is not JSON"
    if not isinstance(found, dict):
        return f"the value is {_KINDS.get(type(found), 'a number')}, not a JSON object"
    wrong = _wrong(found, schema, "")
    if wrong:
        return f"field {wrong[0]} is not {wrong[1]}"
    if _LONG_EXPONENT.search(value):
        return "the exponent of a number has more than four digits"
    return f"the value is not JSON of {schema.simpleString()}"


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _wrong(value: Any, kind: DataType, path: str) -> tuple[str, str] | None:
    """Path and type of the first part that is not of its type."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        if not isinstance(value, dict):
            return path, "an object"
        parts = [(value.get(f.name), f.dataType, f"{path}.{f.name}".lstrip(".")) for f in kind.fields]
    elif isinstance(kind, ArrayType):
        if not isinstance(value, list):
            return path, "an array"
        parts = [(each, kind.elementType, f"{path}[{n}]") for n, each in enumerate(value)]
    elif isinstance(kind, MapType):
        if not isinstance(value, dict):
            return path, "an object"
        parts = [(each, kind.valueType, f"{path}{{}}") for each in value.values()]
    else:
        return None if _fits(value, kind) else (path, kind.simpleString())
    return next((wrong for part in parts if (wrong := _wrong(*part)) is not None), None)


def _fits(value: Any, kind: DataType) -> bool:
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    if isinstance(kind, BooleanType):
        return isinstance(value, bool)
    if (bits := _BITS.get(type(kind))) is not None:
        return is_number and isinstance(value, int) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
    if isinstance(kind, DoubleType | FloatType):
        return is_number
    if isinstance(kind, DecimalType):
        limit = 10 ** (kind.precision - kind.scale)
        return is_number and -limit < value < limit
    # text takes anything, and Spark's dates and times take several forms
    return True
