"""Why a JSON value does not fit its schema. Spark says only that it doesn't."""

from __future__ import annotations

import json
import re
from calendar import monthrange
from decimal import Decimal, InvalidOperation
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
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
    StructType,
    TimestampNTZType,
    TimestampType,
)

_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
# a number as text, as Java reads it once it has no commas
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
# see PlainJson.scala
_MAX_EXPONENT = 9_999
# Spark trims these
_SPACE = "".join(map(chr, range(0x21))) + "\x7f"
_DAY = r"(?P<year>[+-]?\d{4,7})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?:%s)?)?)?"
# a date may have anything after it
_DATE = re.compile(_DAY % "[ T].*", re.ASCII | re.DOTALL)
_DAYS = re.compile(r"[+-]?\d+", re.ASCII)
# any name of a zone: only Java knows which there are
_CLOCK = r"(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.\d*)?(?P<zone>[ A-Za-z+-].*)?)?)?"
_TIMESTAMP = re.compile(_DAY % f"[ T]{_CLOCK}", re.ASCII)
# the last years of a timestamp, whose microseconds are 64 bits, and of a date, whose days are 32 bits
_LAST_TIMESTAMP_YEAR, _LAST_DATE_YEAR = 294_247, 5_881_580
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def misfit(value: bytes, schema: StructType) -> str:
    """The first thing in `value` that does not fit, for a person: `field price is not decimal(8,2)`.

    No part of the value is in it. If Python accepts the value as JSON of that schema and Spark doesn't, the text is
    general.
    """
    try:
        found = json.loads(value, parse_constant=_refuse, parse_float=_number)
    except UnicodeDecodeError:
        return "the value is not UTF-8"
    except json.JSONDecodeError as error:
        return f"the value is not JSON: {error.msg} at character {error.pos}"
    except (ValueError, RecursionError):
        return "the value is not JSON"
    if not isinstance(found, dict):
        return f"the value is {_KINDS.get(type(found), 'a number')}, not a JSON object"
    wrong = _wrong(found, schema, "")
    return f"field {wrong[0]} is not {wrong[1]}" if wrong else f"the value is not JSON of {schema.simpleString()}"


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> Decimal:
    """A JSON number with a point or an exponent. An exponent may be larger than a Decimal's: then infinite, or 0."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal(0) if "e-" in text.lower() else Decimal("Infinity")


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
        return _fits_decimal(value, kind)
    if isinstance(kind, DateType):
        return isinstance(value, str) and _is_date(value.strip(_SPACE))
    if isinstance(kind, TimestampType):
        return _is_timestamp(value.strip(_SPACE)) if isinstance(value, str) else _fits(value, LongType())
    if isinstance(kind, TimestampNTZType):
        return isinstance(value, str) and _is_timestamp(value.strip(_SPACE))
    # text takes anything
    return True


def _fits_decimal(value: Any, kind: DecimalType) -> bool:
    """Whether a number, or a text of one, is small enough once it is rounded to the digits of its type."""
    if isinstance(value, str):
        value = value.replace(",", "")
        if not _DECIMAL.fullmatch(value):
            return False
        value = _number(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return False
    number = Decimal(value)
    _, _, exponent = number.as_tuple()
    if not isinstance(exponent, int) or abs(exponent) > _MAX_EXPONENT:
        return False
    # exact, as neither rounds to the precision of Python's context
    return number.copy_abs() < Decimal(f"{'9' * kind.precision}5e-{kind.scale + 1}")


def _is_date(given: str) -> bool:
    """Whether Spark reads it as a date: up to the year, the month or the day; or the number of days since 1970."""
    if (found := _DATE.fullmatch(given)) is not None:
        return _is_day(found, _LAST_DATE_YEAR)
    # longer numbers would not be 32 bits
    return _DAYS.fullmatch(given) is not None and len(given) < 12 and _fits(int(given), IntegerType())


def _is_timestamp(given: str) -> bool:
    """Whether it may be a timestamp: a date as far as it goes, then a time as far as it goes."""
    found = _TIMESTAMP.fullmatch(given)
    return found is not None and _is_day(found, _LAST_TIMESTAMP_YEAR) and _is_time(found)


def _is_day(found: re.Match[str], last_year: int) -> bool:
    year, month, day = int(found["year"]), int(found["month"] or 1), int(found["day"] or 1)
    # the calendar repeats after 400 years
    return abs(year) <= last_year and 1 <= month <= 12 and 1 <= day <= monthrange(2000 + year % 400, month)[1]


def _is_time(found: re.Match[str]) -> bool:
    return int(found["hour"] or 0) < 24 and int(found["minute"] or 0) < 60 and int(found["second"] or 0) < 60
