"""Input that one release has read and another can't: deleted by retention, compacted, or of a recreated topic. Pure.

A gap is a range of offsets of one partition of an input. A release with gaps is compared, checked and promoted only if
someone has accepted them. Input that goes missing later must be accepted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pipelines.model.base import Frozen
from pipelines.model.names import TopicName

Why = Literal["deleted", "not-read", "compacted", "replaced"]
Offsets = Mapping[str, Mapping[int, int]]
# Kafka's value for "records may have any time"
NO_LIMIT_MS = 2**63 - 1
# past any offset
_FAR = 2**63 - 1


class Gap(Frozen):
    """Offsets from `start` up to, but not including, `end` of one partition of an input, and why they are missing.

    `deleted`: Kafka no longer has them. `not-read`: the release starts after them. `compacted`: Kafka may have dropped
    any of them. `replaced`: they were records of an earlier topic of the same name.
    """

    topic: TopicName
    partition: int
    start: int
    end: int
    why: Why

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] {self.start:,} to {self.end - 1:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputNow:
    """What Kafka says about an input. `first`: partition -> first offset that is kept. `compacted`: whether its
    `cleanup.policy` includes `compact`, None if unknown. `ahead_ms`: how far ahead of the broker's clock a record's
    time may be, None if unknown. `id`: the topic's id, None if unknown.

    `limits`: the settings by which it deletes records, `retention.ms` and `retention.bytes`, as far as they limit it.
    `replicas`: of its partition with the fewest, 0 if unknown. `in_sync`: its `min.insync.replicas`, None if unknown.
    `unclean`: whether a replica that lacks records may become leader.
    """

    first: Mapping[int, int]
    compacted: bool | None = False
    ahead_ms: int | None = 0
    id: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    replicas: int = 0
    in_sync: int | None = None
    unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replication:
    """How a cluster keeps a topic; the fields are those of InputNow. Each is None if this user may not see it."""

    replicas: int | None = None
    in_sync: int | None = None
    unclean: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How far a release has read its inputs. `begins`, `reached`: topic -> partition -> offset. `reached` is the next
    offset that it will read; a partition that isn't in it is read from `begins`. `since_ms`: when the release started
    to read. `ids`: topic -> the topic's id at that time, where known.
    """

    begins: Offsets
    reached: Offsets
    since_ms: int
    ids: Mapping[str, str]

    def next(self, topic: str, partition: int, default: int) -> int:
        return self.reached.get(topic, {}).get(partition, self.begins.get(topic, {}).get(partition, default))


def cut_from(ours: Reader, now: Mapping[str, InputNow]) -> tuple[Gap, ...]:
    """Input that a release has not read yet and can't read: its next batch would fail."""
    return tuple(
        Gap(topic=topic, partition=p, start=here, end=known.first[p], why="deleted")
        for topic, offsets in sorted(ours.begins.items())
        if (known := now.get(topic)) is not None
        for p in sorted(offsets)
        if (here := ours.next(topic, p, 0)) < known.first.get(p, 0)
    )


def missing(theirs: Reader | None, ours: Reader, now: Mapping[str, InputNow]) -> tuple[Gap, ...]:
    """Input that `theirs` has read and this release can't; also input that it has not read yet and can't (`cut_from`).

    An input that only one of them has is a difference in their code, not in history.
    """
    found = list(cut_from(ours, now))
    for topic, begins in sorted(theirs.begins.items() if theirs is not None else ()):
        known = now.get(topic)
        if theirs is None or known is None or topic not in ours.begins:
            continue
        replaced = _differ(theirs.ids.get(topic), ours.ids.get(topic) or known.id)
        for partition, start in sorted(begins.items()):
            end = theirs.next(topic, partition, start)
            if replaced:
                found += _gap(topic, partition, start, end, "replaced")
                continue
            first = known.first.get(partition, 0)
            # a release reads a new partition from its first offset
            mine = ours.begins[topic].get(partition, first)
            found += _gap(topic, partition, start, min(end, mine), "deleted" if first > start else "not-read")
            # compaction may have dropped records that `theirs` read, before this release started
            if known.compacted and ours.since_ms >= theirs.since_ms:
                found += _gap(topic, partition, start, end, "compacted")
    return tuple(found)


def may_be_missing(theirs: Reader | None, ours: Reader, now: Mapping[str, InputNow]) -> bool:
    """Whether anything could be missing, no matter how far they have read: ignores `reached` of both."""
    if theirs is not None:
        far = {topic: dict.fromkeys(begins, _FAR) for topic, begins in theirs.begins.items()}
        theirs = replace(theirs, reached=far)
    return bool(missing(theirs, replace(ours, reached={}), now))


def without(gaps: Iterable[Gap], accepted: Iterable[Gap]) -> tuple[Gap, ...]:
    """The parts of `gaps` that nobody has accepted. A compacted partition is accepted as a whole: both releases read
    what follows.
    """
    known = tuple(accepted)
    left: list[Gap] = []
    for gap in gaps:
        same = [a for a in known if (a.topic, a.partition, _kind(a)) == (gap.topic, gap.partition, _kind(gap))]
        if gap.why == "compacted":
            left += [] if same else [gap]
            continue
        left += _rest(gap, sorted((a.start, a.end) for a in same))
    return tuple(left)


def told(gaps: Iterable[Gap]) -> str:
    """Gaps as text for a person: by reason, then by partition."""
    words = {
        "deleted": "deleted by retention: {}",
        "not-read": "before where the release starts: {}",
        "compacted": "in a compacted topic, which no longer has every record: {}",
        "replaced": "in a topic that was deleted and recreated under the same name: {}",
    }
    known, found = tuple(gaps), []
    for why, text in words.items():
        mine = _joined(gap for gap in known if gap.why == why)
        if mine:
            records = f" ({sum(g.end - g.start for g in mine):,} offsets)" if why != "compacted" else ""
            found.append(text.format(", ".join(map(str, mine))) + records)
    return "; ".join(found)


def _joined(gaps: Iterable[Gap]) -> list[Gap]:
    """Gaps of one reason, in order; adjacent ones are joined."""
    found: list[Gap] = []
    for gap in sorted(gaps, key=lambda g: (g.topic, g.partition, g.start)):
        last = found[-1] if found else None
        if last is not None and (last.topic, last.partition) == (gap.topic, gap.partition) and gap.start <= last.end:
            found[-1] = last.model_copy(update={"end": max(last.end, gap.end)})
        else:
            found.append(gap)
    return found


def _differ(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other


def _kind(gap: Gap) -> str:
    # for either reason, the result lacks the same range
    return "deleted" if gap.why == "not-read" else gap.why


def _gap(topic: str, partition: int, start: int, end: int, why: Why) -> list[Gap]:
    return [Gap(topic=topic, partition=partition, start=start, end=end, why=why)] if start < end else []


def _rest(gap: Gap, covered: list[tuple[int, int]]) -> list[Gap]:
    """The parts of `gap` outside `covered`, which is in order."""
    found, at = [], gap.start
    for start, end in covered:
        found += _gap(gap.topic, gap.partition, at, min(start, gap.end), gap.why)
        at = max(at, end)
    return [*found, *_gap(gap.topic, gap.partition, at, gap.end, gap.why)]
