"""Keys of several results in one place: each has its result's name and a tab before it.

The key of the only result of an app stays as it is. A key is JSON text, so it has no tab of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_BETWEEN = "\t"


def prefix(result: str) -> str:
    """The text before each key of a result."""
    return result + _BETWEEN if result else ""


def tagged(result: str, changes: Mapping[str, str | None]) -> dict[str, str | None]:
    """Key -> value, with the result's name before each key."""
    before = prefix(result)
    return {before + key: value for key, value in changes.items()} if before else dict(changes)


def split(key: str) -> tuple[str, str]:
    """The result's name, empty for the only one, and the key itself."""
    name, between, own = key.partition(_BETWEEN)
    return (name, own) if between else ("", key)


def of_results(changes: Iterable[tuple[str, str | None]], results: frozenset[str]) -> Iterable[tuple[str, str | None]]:
    """The tagged keys that belong to these results, with their values."""
    if results == {""}:
        return changes
    return ((key, value) for key, value in changes if split(key)[0] in results)
