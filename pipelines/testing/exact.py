"""Reads a record's JSON by the types of its columns: a decimal keeps all its digits."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType


class Exact(Decimal):
    """A decimal that equals a float if that is written with the same digits: `0.1`, but no float with fewer digits."""

    def __eq__(self, other: object) -> bool:
        return Decimal.__eq__(self, Decimal(repr(other)) if isinstance(other, float) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = Decimal.__hash__


def reader(columns: StructType) -> Callable[[str], dict[str, Any]]:
    """Reads JSON objects with these columns, or some of them: decimals are `Decimal`, all else is what `json` makes of it."""
    types = {field.name: field.dataType for field in columns.fields}

    def read(text: str) -> dict[str, Any]:
        found = json.loads(text, parse_float=Exact)
        return {name: _typed(value, types.get(name)) for name, value in found.items()}

    return read


def plain(value: Any) -> Any:
    """A value with its decimals as JSON can have them: as a number, or as text where a number would lose digits."""
    if isinstance(value, Decimal):
        return float(value) if Decimal(repr(float(value))) == value else str(value)
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def _typed(value: Any, kind: DataType | None) -> Any:
    if isinstance(value, dict):
        fields = {field.name: field.dataType for field in kind.fields} if isinstance(kind, StructType) else {}
        others = kind.valueType if isinstance(kind, MapType) else None
        return {name: _typed(each, fields.get(name, others)) for name, each in value.items()}
    if isinstance(value, list):
        return [_typed(each, kind.elementType if isinstance(kind, ArrayType) else None) for each in value]
    if isinstance(kind, DecimalType) and isinstance(value, int):
        return Exact(value)
    return float(value) if isinstance(value, Decimal) and not isinstance(kind, DecimalType) else value
