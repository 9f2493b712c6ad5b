"""Compares the values of two results column by column: JSON texts that Switchyard wrote itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from pipelines.model.entries import ResultSpec

# whether a column has equal values in both
Equal = Callable[[Any, Any], bool]

_FLOATING = ("float", "double")


def columns_of(live: ResultSpec, new: ResultSpec, tolerance: float) -> dict[str, Equal]:
    """Value column that both results have -> how its values are compared, in the order of the new result.

    `tolerance`: relative, for floating-point columns. Columns whose type has changed are compared as text.
    """
    return {name: _equal(live.types[name], new.types[name], tolerance) for name in new.value if name in set(live.value)}


def differing(live: str, new: str, columns: Mapping[str, Equal]) -> list[str]:
    """The `columns` in which two values differ. A field that is missing is null."""
    here, there = read(live), read(new)
    return [name for name, equal in columns.items() if not equal(here.get(name), there.get(name))]


def read(value: str) -> dict[str, Any]:
    """Column -> its value. A number stays text: as a float, a long decimal would lose digits."""
    found = json.loads(value, parse_float=str, parse_int=str, parse_constant=str)
    return found if isinstance(found, dict) else {}


def _equal(live: str, new: str, tolerance: float) -> Equal:
    if live != new:
        return _equal_text
    if new in _FLOATING:
        return lambda one, other: one == other or _near(one, other, tolerance)
    return _equal_numbers if new.startswith("decimal") else _same


def _same(one: Any, other: Any) -> bool:
    return bool(one == other)


def _equal_text(one: Any, other: Any) -> bool:
    """Compares a string with a number, say: `"5"` and `5` are equal, `"1.50"` and `1.5` are not."""
    return _text(one) == _text(other)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _near(one: Any, other: Any, tolerance: float) -> bool:
    if one is None or other is None:
        return False
    a, b = float(one), float(other)
    return math.isclose(a, b, rel_tol=tolerance) or (math.isnan(a) and math.isnan(b))


def _equal_numbers(one: Any, other: Any) -> bool:
    """Decimals are equal whatever their notation: `0E-6` and `0.000000`."""
    if one == other or one is None or other is None:
        return bool(one == other)
    try:
        return Decimal(one) == Decimal(other)
    except InvalidOperation:
        return False
