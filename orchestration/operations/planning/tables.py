"""What a plan says about static tables: what each release has, and what differs."""

from __future__ import annotations

from collections.abc import Mapping

from orchestration.operations.looking.tables import KeptTable
from pipelines.model.entries import ReleaseSpec


def table_facts(spec: ReleaseSpec, other: ReleaseSpec | None) -> dict[str, str]:
    """What a plan says about the static tables of a release. `other`: the release that it follows or is compared with."""
    found = {}
    for name, table in spec.static_tables.items():
        theirs = other.static_tables.get(name) if other is not None else None
        said = f"{table.in_words()}, as {table.digest[:12]}"
        if other is not None and theirs is not None:
            has = "the same rows" if theirs.digest == table.digest else theirs.in_words()
            said += f"; {other.release} has {has}"
        found[f"static table {name}"] = said
    return found


def other_tables(one: ReleaseSpec, other: ReleaseSpec) -> list[str]:
    """The static tables of which two releases have different rows; or only one of them has it."""
    digests = [{name: table.digest for name, table in spec.static_tables.items()} for spec in (one, other)]
    return [name for name in dict.fromkeys([*digests[0], *digests[1]]) if digests[0].get(name) != digests[1].get(name)]


def table_changes(live: ReleaseSpec, new: ReleaseSpec) -> tuple[str, ...]:
    """A warning for each static table of which `new` has other rows than `live`."""
    found = []
    for name in other_tables(live, new):
        was, now = live.static_tables.get(name), new.static_tables.get(name)
        has = [table.in_words() if table is not None else "no such table" for table in (now, was)]
        found.append(
            f"static table {name}: {new.release} has {has[0]}; {live.release} has {has[1]}. Results may differ because of that"
        )
    return tuple(found)


def malformed_notes(kept: Mapping[str, KeptTable]) -> tuple[str, ...]:
    """A warning for each static table whose topic has malformed records."""
    return tuple(
        f"static table {name}: {table.said}; they are left out, and each of their keys keeps its earlier row"
        for name, table in kept.items()
        if table.said
    )
