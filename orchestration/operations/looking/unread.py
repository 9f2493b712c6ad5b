"""Records that this version can't read: registry entries, progress records, heartbeats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestration.operations.plans.plan import Table
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.model.names import progress_topic
from pipelines.model.registry import RegistryState, Release
from pipelines.model.unread import Unread


def in_short(state: RegistryState) -> str | None:
    """What `status` says about entries that can't be read; None: there are none."""
    count, held = unread_count(state)
    return unread_in_words(count, held) if count else None


def unread_count(state: RegistryState) -> tuple[int, int]:
    """How many entries can't be read, and how many of them must be understood."""
    return len(state.unread) + state.unread_before if state.unread else 0, sum(each.must for each in state.unread)


def unread_in_words(count: int, held: int) -> str:
    """A sentence: `count` entries can't be read, `held` of which hold releases."""
    said = f"{count:,} {'entry' if count == 1 else 'entries'} of the registry can't be read by this version"
    names = "it names" if held == 1 else "they name"
    return said + (f", {held:,} of them must not be ignored: the releases that {names} are held" if held else "")


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


def heartbeats_in_words(records: int) -> str:
    """A sentence: so many heartbeats of the last minute can't be read."""
    return (
        f"{records:,} {'heartbeat' if records == 1 else 'heartbeats'} of the last minute can't be read by this version"
    )


def unread_progress(context: Reading, releases: Iterable[Release]) -> dict[str, Refused]:
    """Those of `releases` that are not retired and whose newest progress record can't be read -> why, and what helps.

    Reads one record of each release.
    """
    names = sorted(release.name for release in releases if release.state != "retired")
    there = context.cluster.topic_names() if names else set()
    found = {}
    for name in names:
        if progress_topic(name) in there:
            try:
                context.progress(name)
            except Refused as error:
                found[name] = error
    return found
