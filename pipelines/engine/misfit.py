"""Why the JSON of a value or a key does not fit its schema. Spark says only that it doesn't."""

from __future__ import annotations

import json
import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
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
_SECOND = r"(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?(?P<zone>[ A-Za-z+-].*)?"
_CLOCK = rf"(?P<hour>\d{{1,2}})(?::(?P<minute>\d{{1,2}})(?::{_SECOND})?)?"
_TIMESTAMP = re.compile(_DAY % f"[ T]{_CLOCK}", re.ASCII)
# an offset as Java reads it; all other zones have names
_OFFSET = re.compile(
    r"(?:Z|(?:UTC|GMT|UT)?(?P<sign>[+-])(?P<hour>\d{1,2})(?::?(?P<minute>\d{1,2})(?::?(?P<second>\d{2}))?)?)?", re.ASCII
)
_MOST_OFFSET_S = 18 * 3600
# the last year of a date, whose days are 32 bits; the last seconds of a timestamp, whose microseconds are 64 bits
_LAST_DATE_YEAR, _FIRST_US, _LAST_US = 5_881_580, -(2**63), 2**63 - 1
_DAYS_OF_400_YEARS = 146_097
# as Jackson reads it: white space may stand around each four characters
_BASE64 = re.compile(r"(?:[\x00-\x20]*[A-Za-z0-9+/]{2}(?:[A-Za-z0-9+/]{2}|[A-Za-z0-9+/]=|==))*+[\x00-\x20]*")
_HALF = re.compile("[\ud800-\udfff]")
_HALVED = "has half of a surrogate pair"
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def misfit(given: bytes, schema: StructType, part: Literal["value", "key"] = "value") -> str:
    """The first thing in a record's value or key that does not fit, for a person: `field price is not decimal(8,2)`.

    Nothing of what was given is in it. If Python accepts it as JSON of that schema and Spark doesn't, the text is
    general.
    """
    try:
        found = json.loads(given, parse_constant=_refuse, parse_float=_number)
    except UnicodeDecodeError:
        return f"the {part} is not UTF-8"
    except json.JSONDecodeError as error:
        return f"the {part} is not JSON: {error.msg} at character {error.pos}"
    except (ValueError, RecursionError):
        return f"the {part} is not JSON"
    if not isinstance(found, dict):
        return f"the {part} is {_KINDS.get(type(found), 'a number')}, not a JSON object"
    if (wrong := _wrong(found, schema, "")) is None:
        return f"the {part} is not JSON of {schema.simpleString()}"
    return f"field {wrong[0]} {wrong[1]}" + (" in the key" if part == "key" else "")


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> Decimal:
    """A JSON number with a point or an exponent. An exponent may be larger than a Decimal's: then infinite, or 0."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal(0) if "e-" in text.lower() else Decimal("Infinity")


def _wrong(value: Any, kind: DataType, path: str) -> tuple[str, str] | None:
    """Path of the first part that does not fit its type, and what is wrong with it."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        if not isinstance(value, dict):
            return path, "is not an object"
        parts = [(value.get(f.name), f.dataType, f"{path}.{f.name}".lstrip(".")) for f in kind.fields]
    elif isinstance(kind, ArrayType):
        if not isinstance(value, list):
            return path, "is not an array"
        parts = [(each, kind.elementType, f"{path}[{n}]") for n, each in enumerate(value)]
    elif isinstance(kind, MapType):
        if not isinstance(value, dict):
            return path, "is not an object"
        if any(map(_HALF.search, value)):
            return path, f"{_HALVED} in a key"
        parts = [(each, kind.valueType, f"{path}{{}}") for each in value.values()]
    elif isinstance(kind, StringType | VariantType):
        # another value is read as its JSON text, which keeps the escape
        texts = _texts(value) if isinstance(kind, VariantType) else [value] if isinstance(value, str) else []
        return (path, _HALVED) if any(map(_HALF.search, texts)) else None
    else:
        return None if _fits(value, kind) else (path, f"is not {kind.simpleString()}")
    return next((wrong for part in parts if (wrong := _wrong(*part)) is not None), None)


def _texts(value: Any) -> Iterator[str]:
    """All texts and names in a JSON value, however deep it is."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += [*each, *each.values()]


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
    if isinstance(kind, BinaryType):
        return isinstance(value, str) and _BASE64.fullmatch(value) is not None
    if isinstance(kind, DateType):
        return isinstance(value, str) and _is_date(value.strip(_SPACE))
    if isinstance(kind, TimestampType):
        return _is_timestamp(value.strip(_SPACE)) if isinstance(value, str) else _fits(value, LongType())
    if isinstance(kind, TimestampNTZType):
        return isinstance(value, str) and _is_timestamp(value.strip(_SPACE))
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
        return abs(int(found["year"])) <= _LAST_DATE_YEAR and _is_day(found)
    # longer numbers would not be 32 bits
    return _DAYS.fullmatch(given) is not None and len(given) < 12 and _fits(int(given), IntegerType())


def _is_timestamp(given: str) -> bool:
    """Whether it may be a timestamp: a date as far as it goes, then a time as far as it goes."""
    found = _TIMESTAMP.fullmatch(given)
    return found is not None and _is_day(found) and _is_time(found) and _is_in_range(found)


def _is_day(found: re.Match[str]) -> bool:
    year, month, day = _day(found)
    # the calendar repeats after 400 years
    return 1 <= month <= 12 and 1 <= day <= monthrange(2000 + year % 400, month)[1]


def _day(found: re.Match[str]) -> tuple[int, int, int]:
    return int(found["year"]), int(found["month"] or 1), int(found["day"] or 1)


def _is_time(found: re.Match[str]) -> bool:
    return int(found["hour"] or 0) < 24 and int(found["minute"] or 0) < 60 and int(found["second"] or 0) < 60


def _is_in_range(found: re.Match[str]) -> bool:
    """Whether a timestamp may be one of 64 bits. Without a zone, it is of UTC, as Spark's sessions here are."""
    year, month, day = _day(found)
    days = date(2000 + year % 400, month, day).toordinal() - date(1970, 1, 1).toordinal()
    days += (year // 400 - 5) * _DAYS_OF_400_YEARS
    seconds = days * 86_400 + sum(int(found[n] or 0) * s for n, s in (("hour", 3600), ("minute", 60), ("second", 1)))
    us = seconds * 1_000_000 + int((found["fraction"] or "")[:6].ljust(6, "0"))
    zone = _OFFSET.fullmatch((found["zone"] or "").strip())
    if zone is None:
        # by its name: only Java knows its offset
        far_us = _MOST_OFFSET_S * 1_000_000
        return _FIRST_US - far_us <= us <= _LAST_US + far_us
    offset_s = sum(int(zone[n] or 0) * s for n, s in (("hour", 3600), ("minute", 60), ("second", 1)))
    us += offset_s * 1_000_000 * (1 if zone["sign"] == "-" else -1)
    return offset_s <= _MOST_OFFSET_S and _FIRST_US <= us <= _LAST_US
