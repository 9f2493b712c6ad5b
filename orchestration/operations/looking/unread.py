"""Registry entries that this version can't read."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.operations.plans.plan import Table
from pipelines.model.registry import RegistryState
from pipelines.model.unread import Unread


def in_short(state: RegistryState) -> str | None:
    """What `status` says about entries that can't be read; None: there are none."""
    count, held = unread_count(state)
    return unread_in_words(count, held) if count else None


def unread_count(state: RegistryState) -> tuple[int, int]:
    """How many entries can't be read, and how many of them must be understood."""
    return len(state.unread) + state.unread_before if state.unread else 0, sum(each.must for each in state.unread)


def unread_in_words(count: int, held: int) -> str:
    """A sentence: `count` entries can't be read, `held` of which must be understood."""
    said = f"{count:,} {'entry' if count == 1 else 'entries'} of the registry can't be read by this version"
    return said + (f", {held} of which must be understood: the releases that these concern are held" if held else "")


def table_of(unread: Sequence[Unread]) -> Table:
    """A table of unread entries, one per row."""
    rows = tuple(
        (
            str(each.offset),
            each.kind or "unknown",
            each.writer or "unknown",
            each.reason,
            (", ".join(each.about) or "everything") if each.must else "nobody",
        )
        for each in unread
    )
    return Table(title="entries that can't be read", columns=("offset", "kind", "by", "why", "holds"), rows=rows)
