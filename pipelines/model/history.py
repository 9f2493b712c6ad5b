"""In what order history is read, so that no row of it is late that was in time when it came.

Spark takes of each partition its share of what is left, and its watermark follows the newest record of all of them. So where
one partition holds ten years and another the last day, the last day is read at once, and ten years are late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipelines.model.positions import SourcePosition

Look = Callable[[int], SourcePosition]


@dataclass(frozen=True, slots=True)
class Slice:
    """History up to a time: `end` is, of each partition, its first record at or after `until_ms`."""

    until_ms: int
    end: SourcePosition


def slices(begin: SourcePosition, end: SourcePosition, look: Look, now_ms: int, records: int) -> list[Slice]:
    """The way from `begin` to `end` by the time of the records: slices of at most `records`, where times tell them apart.

    `look`: the position of the first records at or after a time, milliseconds since the epoch; the end of a partition without.
    What is dated later than `now_ms` is in no slice.
    """

    def at(ms: int) -> SourcePosition:
        return between(begin, look(ms), end)

    found: list[Slice] = []
    for step in _halved(0, begin, now_ms, at(now_ms), at, records):
        before = found[-2].end if len(found) > 1 else begin
        if found and step.end.records_since(before) <= records:
            found[-1] = step
        else:
            found.append(step)
    return found


def _halved(
    start_ms: int, start: SourcePosition, end_ms: int, end: SourcePosition, at: Look, records: int
) -> Iterator[Slice]:
    count = end.records_since(start)
    if count == 0:
        return
    if count <= records or end_ms - start_ms <= 1:
        yield Slice(end_ms, end)
        return
    middle_ms = (start_ms + end_ms) // 2
    middle = at(middle_ms)
    yield from _halved(start_ms, start, middle_ms, middle, at, records)
    yield from _halved(middle_ms, middle, end_ms, end, at, records)


def between(low: SourcePosition, position: SourcePosition, high: SourcePosition) -> SourcePosition:
    """`position`, of the partitions of `high`, no nearer than `low` and no further than `high`."""
    return SourcePosition(
        sources={
            source: {
                p: min(last, max(low.sources.get(source, {}).get(p, 0), position.sources.get(source, {}).get(p, last)))
                for p, last in offsets.items()
            }
            for source, offsets in high.sources.items()
        }
    )


def is_skewed(begin: SourcePosition, end: SourcePosition, steps: Sequence[Slice], look: Look, delay_ms: int) -> bool:
    """Whether reading of each partition its share would make rows late, by a watermark of `delay_ms`.

    Asked at the time of each slice: where the partition that is furthest behind has come to it, another one is read further
    than that time and the delay.
    """
    for step in steps:
        allowed = look(step.until_ms + delay_ms)
        for source, lasts in end.sources.items():
            starts = begin.sources.get(source, {})
            sizes = {p: last - starts.get(p, 0) for p, last in lasts.items() if last > starts.get(p, 0)}
            shares = {p: (step.end.sources[source][p] - starts.get(p, 0)) / size for p, size in sizes.items()}
            share = max(shares.values(), default=0.0)
            for p, size in sizes.items():
                limit = allowed.sources.get(source, {}).get(p, lasts[p])
                # a record more or less is what rounding makes of a share
                if starts.get(p, 0) + share * size > limit + 1:
                    return True
    return False
