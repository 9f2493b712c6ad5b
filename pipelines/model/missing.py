"""Input that one release has read and another can't: deleted by retention, compacted, or of a topic that is another by now. Pure.

A gap is a range of offsets of one partition of an input. A release that has gaps is compared, checked and promoted only
where someone has accepted them; what goes missing after that asks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pipelines.model.base import Frozen
from pipelines.model.names import TopicName

Why = Literal["deleted", "not-read", "compacted", "replaced"]
Offsets = Mapping[str, Mapping[int, int]]
# past any offset
_FAR = 2**63 - 1


class Gap(Frozen):
    """Offsets from `start` up to and without `end` of one partition of an input, and why they are missing.

    `deleted`: Kafka has them no more. `not-read`: the release begins after them. `compacted`: Kafka may have dropped any of
    them. `replaced`: they were records of a topic of the same name that is gone.
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
    """What Kafka says of an input. `first`: partition -> first offset that it still has. `compacted`: whether its
    `cleanup.policy` has `compact`; None: it doesn't tell. `id`: the topic's; None: it doesn't tell.
    """

    first: Mapping[int, int]
    compacted: bool | None = False
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How far a release reads its inputs. `begins`, `reached`: topic -> partition -> offset; `reached` is the next one that it
    will read, `begins` where it has none. `since_ms`: when it began. `ids`: topic -> the topic's id then, as far as known.
    """

    begins: Offsets
    reached: Offsets
    since_ms: int
    ids: Mapping[str, str]

    def next(self, topic: str, partition: int, default: int) -> int:
        return self.reached.get(topic, {}).get(partition, self.begins.get(topic, {}).get(partition, default))


def cut_from(ours: Reader, now: Mapping[str, InputNow]) -> tuple[Gap, ...]:
    """What a release has yet to read, and can't: its next batch would fail."""
    return tuple(
        Gap(topic=topic, partition=p, start=here, end=known.first[p], why="deleted")
        for topic, offsets in sorted(ours.begins.items())
        if (known := now.get(topic)) is not None
        for p in sorted(offsets)
        if (here := ours.next(topic, p, 0)) < known.first.get(p, 0)
    )


def missing(theirs: Reader | None, ours: Reader, now: Mapping[str, InputNow]) -> tuple[Gap, ...]:
    """What a release can't read and the other, `theirs`, has read; and what it has yet to read and can't (`cut_from`).

    An input of only one of them is a difference of their code, and none of history.
    """
    found = list(cut_from(ours, now))
    for topic, begun in sorted(theirs.begins.items() if theirs is not None else ()):
        known = now.get(topic)
        if theirs is None or known is None or topic not in ours.begins:
            continue
        replaced = _differ(theirs.ids.get(topic), ours.ids.get(topic) or known.id)
        for partition, start in sorted(begun.items()):
            end = theirs.next(topic, partition, start)
            if replaced:
                found += _gap(topic, partition, start, end, "replaced")
                continue
            first = known.first.get(partition, 0)
            # a partition that it doesn't know yet is read from the first offset
            mine = ours.begins[topic].get(partition, first)
            found += _gap(topic, partition, start, min(end, mine), "deleted" if first > start else "not-read")
            # what both began before it was compacted, the later one may have found dropped
            if known.compacted and ours.since_ms >= theirs.since_ms:
                found += _gap(topic, partition, start, end, "compacted")
    return tuple(found)


def may_be_missing(theirs: Reader | None, ours: Reader, now: Mapping[str, InputNow]) -> bool:
    """Whether anything could be missing, however far they have read: `reached` of both doesn't count."""
    if theirs is not None:
        far = {topic: dict.fromkeys(begun, _FAR) for topic, begun in theirs.begins.items()}
        theirs = replace(theirs, reached=far)
    return bool(missing(theirs, replace(ours, reached={}), now))


def without(gaps: Iterable[Gap], accepted: Iterable[Gap]) -> tuple[Gap, ...]:
    """What of `gaps` nobody has accepted. A compacted partition is accepted as such: what is read of it later is in both."""
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
    """Gaps in words, for a person: by reason, partition by partition."""
    words = {
        "deleted": "deleted by retention: {}",
        "not-read": "before where it begins: {}",
        "compacted": "in a compacted topic, which can't be replayed as of then: {}",
        "replaced": "of a topic that was deleted, and made again under the same name: {}",
    }
    known, found = tuple(gaps), []
    for why, text in words.items():
        mine = _joined(gap for gap in known if gap.why == why)
        if mine:
            records = f" ({sum(g.end - g.start for g in mine):,} offsets)" if why != "compacted" else ""
            found.append(text.format(", ".join(map(str, mine))) + records)
    return "; ".join(found)


def _joined(gaps: Iterable[Gap]) -> list[Gap]:
    """Gaps of one reason, in order; those that touch are one."""
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
    # whatever keeps a release from reading a range, its result lacks the same
    return "deleted" if gap.why == "not-read" else gap.why


def _gap(topic: str, partition: int, start: int, end: int, why: Why) -> list[Gap]:
    return [Gap(topic=topic, partition=partition, start=start, end=end, why=why)] if start < end else []


def _rest(gap: Gap, covered: list[tuple[int, int]]) -> list[Gap]:
    """The parts of `gap` outside of `covered`, which is in order."""
    found, at = [], gap.start
    for start, end in covered:
        found += _gap(gap.topic, gap.partition, at, min(start, gap.end), gap.why)
        at = max(at, end)
    return [*found, *_gap(gap.topic, gap.partition, at, gap.end, gap.why)]
