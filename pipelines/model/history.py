"""In what portions history is read, so that no row of it is late that was in time when it came.

Spark takes of each partition its share of what is left, and its watermark follows the newest record of all. So where one
partition holds ten years and another the last day, the last day is read at once, and ten years are late.
"""

from __future__ import annotations

from collections.abc import Callable

from pipelines.model.positions import SourcePosition

Look = Callable[[int], SourcePosition]
# a portion of nine tenths is good enough: another look costs a question to Kafka
_ENOUGH = 0.9


def portion(here: SourcePosition, end: SourcePosition, look: Look, now_ms: int, records: int) -> SourcePosition | None:
    """Where the next portion of history ends: at one time on all partitions, after at most `records`, unless times don't
    tell more of them apart. None: what is left up to `end` is no more than that, or is dated later than `now_ms`.

    `look`: the position of the first records at or after a time, in milliseconds since the epoch; of a partition without such a
    record, nothing.
    """

    def at(ms: int) -> tuple[int, SourcePosition]:
        found = between(here, look(ms), end)
        return found.records_since(here), found

    if end.records_since(here) <= records:
        return None
    low_ms, (low, position) = 0, (0, here)
    high_ms, (high, beyond) = now_ms, at(now_ms)
    if high <= records:
        return beyond if high else None
    interpolate = True
    while high_ms - low_ms > 1 and low < _ENOUGH * records:
        # by turns: halving alone takes long where records lie evenly, interpolating where they don't
        share = (records - low) / (high - low) if interpolate else 0.5
        middle_ms = min(max(low_ms + int((high_ms - low_ms) * share), low_ms + 1), high_ms - 1)
        interpolate = not interpolate
        count, found = at(middle_ms)
        if count <= records:
            low_ms, low, position = middle_ms, count, found
        else:
            high_ms, high, beyond = middle_ms, count, found
    return position if low else beyond


def between(low: SourcePosition, position: SourcePosition, high: SourcePosition) -> SourcePosition:
    """`position`, of the partitions of `high`, no nearer than `low` and, where that is nearer, no further than `high`."""

    def bounded(source: str, p: int, last: int) -> int:
        first = low.sources.get(source, {}).get(p, 0)
        return max(first, min(last, position.sources.get(source, {}).get(p, last)))

    return SourcePosition(
        sources={
            source: {p: bounded(source, p, last) for p, last in offsets.items()}
            for source, offsets in high.sources.items()
        }
    )
