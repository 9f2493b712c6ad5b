"""Compares the values of two results column by column: JSON texts that Switchyard wrote itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from pipelines.errors import SwitchyardError
from pipelines.model.entries import ResultSpec

# whether a column has equal values in both
Equal = Callable[[Any, Any], bool]

_FLOATING = ("float", "double")
_NUMBERS = (*_FLOATING, "tinyint", "smallint", "int", "bigint")


class _Number(str):
    """A number of JSON as it was written: as a float, a long decimal would lose digits. It equals no string."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and str.__eq__(self, other)

    __hash__ = str.__hash__


def columns_of(live: ResultSpec, new: ResultSpec, tolerance: float) -> dict[str, Equal]:
    """Value column that both results have -> how its values are compared, in the order of the new result.

    `tolerance`: relative, for floating-point columns. A column whose type has changed, and values in other values, are
    compared as JSON writes them.
    """
    return {name: _equal(live.types[name], new.types[name], tolerance) for name in new.value if name in set(live.value)}


def differing(live: str, new: str, columns: Mapping[str, Equal]) -> list[str]:
    """The `columns` in which two values differ. A field that is missing is null. Raises SwitchyardError if a value isn't a
    JSON object, or does not fit its column.
    """
    here, there = _fields(live), _fields(new)
    try:
        return [name for name, equal in columns.items() if not equal(here.get(name), there.get(name))]
    except (ValueError, ArithmeticError, TypeError, RecursionError) as error:
        raise _unfit("does not fit its columns") from error


def _fields(value: str) -> dict[str, Any]:
    """Column -> its value."""
    found = parsed(value, as_number=_Number)
    if not isinstance(found, dict):
        raise _unfit("is not a JSON object")
    return found


def parsed(text: str, *, as_number: Callable[[str], Any] | None) -> Any:
    """What a JSON text says. `as_number`: makes something of each number; None: Python's numbers, but a text of NaN, which
    JSON does not have. Raises SwitchyardError if it isn't JSON.
    """
    try:
        return json.loads(text, parse_float=as_number, parse_int=as_number, parse_constant=as_number or str)
    except (ValueError, RecursionError) as error:
        raise _unfit("is not JSON") from error


def _unfit(what: str) -> SwitchyardError:
    return SwitchyardError(
        f"a record of the result {what}", fix="`switchyard status` tells how to make the result again"
    )


def _equal(live: str, new: str, tolerance: float) -> Equal:
    if live != new:
        return _equal_texts_or_near(tolerance) if tolerance and new in _FLOATING and _is_number(live) else _equal_texts
    if new in _FLOATING:
        return lambda one, other: one == other or _near(one, other, tolerance)
    return _equal_decimals if new.startswith("decimal") else _same


def _is_number(kind: str) -> bool:
    return kind in _NUMBERS or kind.startswith("decimal")


def _same(one: Any, other: Any) -> bool:
    return bool(one == other)


def _equal_texts(one: Any, other: Any) -> bool:
    """Compares a string with a number, say: `"5"` and `5` are equal, `"1.50"` and `1.5` are not."""
    return _text(one) == _text(other)


def _equal_texts_or_near(tolerance: float) -> Equal:
    return lambda one, other: _equal_texts(one, other) or _near(one, other, tolerance)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value) if isinstance(value, str) else json.dumps(value)


def _near(one: Any, other: Any, tolerance: float) -> bool:
    if one is None or other is None:
        return False
    a, b = float(one), float(other)
    return math.isclose(a, b, rel_tol=tolerance) or (math.isnan(a) and math.isnan(b))


def _equal_decimals(one: Any, other: Any) -> bool:
    """Decimals are equal whatever their notation: `0E-6` and `0.000000`."""
    if one == other or one is None or other is None:
        return bool(one == other)
    return Decimal(str(one)) == Decimal(str(other))
