"""What a supervisor decides: which releases to start, which have failed, which drivers hang. Pure; `turns` acts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from orchestration.operations.looking.unread import unread_count
from orchestration.operations.supervising.alerts import EntriesUnread, HeartbeatsUnread, ProgressUnread
from orchestration.operations.supervising.overview import ReleaseStatus
from pipelines.model.registry import RegistryState

# pauses between starts, so that a driver that dies at once is not started in a loop: 5 s, 10 s, 20 s ... 5 min
_FIRST_PAUSE_MS = 5_000
_LONGEST_PAUSE_MS = 300_000
# a release that has run this long counts as started: its next failure is a first one again
_LASTED_MS = 900_000
# a supervisor that has just reached Kafka again finds only old heartbeats; a driver that may live has this long to be heard
_SURE_MS = 5_000
# After a longer pause between two turns, the silence of a process that lives is counted from the start again: it may have
# been suspended with this host, and would be killed
_GAP_MS = 30_000
_OVER = ("failed", "retired")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Starts of a release in a row that did not last. `at_ms`: the last one, in milliseconds since the epoch."""

    count: int
    at_ms: int

    def due(self, now: int) -> bool:
        """Whether the pause after this attempt is over."""
        pause_ms = min(_FIRST_PAUSE_MS * (1 << min(self.count - 1, 10)), _LONGEST_PAUSE_MS)
        # a time in the future is that of another broker, whose clock was ahead
        return not 0 <= now - self.at_ms < pause_ms


class Memory(BaseModel):
    """What a supervisor keeps from turn to turn. Times in milliseconds since the epoch.

    turned: when the last turn was. attempts: release -> count and time of the starts in a row that did not last.
    silent: release -> since when its driver has sent no heartbeat although its process is, or may be, alive.
    trouble: release -> the last error of its driver, or why it could not be started. failed: the releases that are
    known to have failed; None before the first turn. unread: the offset after the last unreadable registry entry that
    was alerted. unread_heartbeats: how many heartbeats could not be read in the last turn. unread_progress: releases that were down
    then and whose newest progress record could not be read. of_other_hosts: releases that are down and belong to
    another host.
    """

    turned: int = 0
    attempts: dict[str, tuple[int, int]] = {}
    silent: dict[str, int] = {}
    trouble: dict[str, str] = {}
    failed: list[str] | None = None
    unread: int = 0
    unread_heartbeats: int = 0
    unread_progress: list[str] = []
    of_other_hosts: list[str] = []

    def attempt(self, name: str) -> Attempt | None:
        """The starts of `name` in a row that did not last; None: there was none."""
        found = self.attempts.get(name)
        return None if found is None else Attempt(count=found[0], at_ms=found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a turn does. start: releases to start. hung: releases whose driver to fence and kill; a later turn replaces
    it. give_up: releases that were started too often. failed: releases that have failed since the last turn.
    """

    start: tuple[str, ...] = ()
    hung: tuple[str, ...] = ()
    give_up: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def decide(
    memory: Memory,
    found: Sequence[ReleaseStatus],
    *,
    living: Collection[str],
    unknown: Collection[str],
    booting: Collection[str],
    now: int,
    limit: int,
    room: int,
    held: Collection[str] = (),
) -> Decision:
    """What to do about the releases in `found`. Updates `memory`.

    `living`: releases whose lease is held by a living process on this host. `unknown`: those whose lease is held by a
    process that may live, such as one of another host. `booting`: releases that someone is starting. `limit`: how often in a row a release is started. `room`: how many drivers may boot at once. `held`:
    releases that nobody starts from here: a newer version must, or another host.
    """
    memory.attempts = {name: (c, at) for name, (c, at) in memory.attempts.items() if now - at < _LASTED_MS}
    _remember_trouble(memory, found)
    down = [
        s.release.name
        for s in found
        if s.health == "down" and s.release.state not in _OVER and s.release.name not in held
    ]
    silent = _silent(memory, [name for name in down if name in living or name in unknown], living, now)
    hung = [name for name in silent if name in living]
    start: list[str] = []
    give_up: list[str] = []
    room -= len({s.release.name for s in found if s.health == "starting"} | set(booting))
    for name in down:
        attempt = memory.attempt(name)
        if (
            name in living
            or (name in unknown and name not in silent)
            or name in booting
            or (attempt is not None and not attempt.due(now))
        ):
            continue
        if attempt is not None and attempt.count >= limit:
            give_up.append(name)
        elif room > len(start):
            start.append(name)
            memory.attempts[name] = (attempt.count + 1 if attempt else 1, now)
    return Decision(start=tuple(start), hung=tuple(hung), give_up=tuple(give_up), failed=_newly_failed(memory, found))


def unreadable(memory: Memory, state: RegistryState) -> EntriesUnread | None:
    """The alert about entries that can't be read; None: there are no new ones."""
    newest = max((each.offset + 1 for each in state.unread), default=0)
    if newest <= memory.unread:
        return None
    memory.unread = newest
    entries, held = unread_count(state)
    return EntriesUnread(entries=entries, held=held)


def unreadable_heartbeats(memory: Memory, records: int) -> HeartbeatsUnread | None:
    """The alert about `records` heartbeats that can't be read; None: there are none, or they were alerted already."""
    before, memory.unread_heartbeats = memory.unread_heartbeats, records
    return HeartbeatsUnread(records=records) if records and not before else None


def unreadable_progress(memory: Memory, found: Mapping[str, str]) -> list[ProgressUnread]:
    """The alerts about releases that are down and whose newest progress record can't be read; none about one that was
    found in the last turn. `found`: release -> why.
    """
    before, memory.unread_progress = memory.unread_progress, sorted(found)
    return [ProgressUnread(release=name, why=why) for name, why in found.items() if name not in before]


def _silent(memory: Memory, unheard: Sequence[str], living: Collection[str], now: int) -> list[str]:
    """The releases that this supervisor has not heard for so long that it is sure. `unheard`: those not heard now."""
    gap, memory.turned = now - memory.turned > _GAP_MS, now
    known = {name: since for name, since in memory.silent.items() if not (gap and name in living)}
    memory.silent = {name: known.get(name, now) for name in unheard}
    return [name for name, since in memory.silent.items() if now - since >= _SURE_MS]


def _remember_trouble(memory: Memory, found: Sequence[ReleaseStatus]) -> None:
    for status in found:
        if status.beat is not None and status.beat.error:
            memory.trouble[status.release.name] = status.beat.error
        elif status.health == "running":
            memory.trouble.pop(status.release.name, None)


def _newly_failed(memory: Memory, found: Sequence[ReleaseStatus]) -> tuple[str, ...]:
    now, known = [s.release.name for s in found if s.release.state == "failed"], memory.failed
    memory.failed = now
    # in its first turn, a supervisor does not know when these failed
    return () if known is None else tuple(name for name in now if name not in known)
