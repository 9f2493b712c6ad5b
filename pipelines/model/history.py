"""The portions in which to read history, so that a row that came in time does not become late.

Spark takes from each partition its share of what is left, and its watermark follows the newest record of all
partitions. Suppose one partition holds ten years and another only the last day. Spark reads the last day at once, and
all ten years are late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from pipelines.model.positions import SourcePosition

Look = Callable[[int], SourcePosition]
# a portion of nine tenths is good enough: each further look is a request to Kafka
_ENOUGH = 0.9


def portion(here: SourcePosition, end: SourcePosition, look: Look, now_ms: int, records: int) -> SourcePosition | None:
    """Where the next portion of history ends: at the same time on all partitions, after at most `records`. It is larger
    only if more records than that have the same time. None: at most `records` records are left up to `end`, or the
    records that are left are dated later than `now_ms`.

    `look`: the position of the first records at or after a time, in milliseconds since the epoch; without the
    partitions that have no such record.
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
        # alternate: bisection is slow if records are spread evenly over time, interpolation if they aren't
        share = (records - low) / (high - low) if interpolate else 0.5
        middle_ms = min(max(low_ms + int((high_ms - low_ms) * share), low_ms + 1), high_ms - 1)
        interpolate = not interpolate
        count, found = at(middle_ms)
        if count <= records:
            low_ms, low, position = middle_ms, count, found
        else:
            high_ms, high, beyond = middle_ms, count, found
    return position if low else beyond


def share(here: SourcePosition, end: SourcePosition, limits: Mapping[str, int]) -> SourcePosition | None:
    """Where the next batch ends if it takes from each partition its share of what is left, as Spark does. None: no source
    has more left up to `end` than its limit. `limits`: source -> records.
    """
    left = {
        source: {p: max(0, last - _offset(here, source, p)) for p, last in offsets.items()}
        for source, offsets in end.sources.items()
    }
    if all(sum(of.values()) <= limits[source] for source, of in left.items()):
        return None

    def taken(source: str, partition: int) -> int:
        records = left[source][partition]
        exact = records * min(1.0, limits[source] / max(1, sum(left[source].values())))
        # no partition with records is left out
        return min(records, max(1, math.floor(exact)))

    return SourcePosition(
        sources={
            source: {p: _offset(here, source, p) + taken(source, p) for p in offsets}
            for source, offsets in left.items()
        }
    )


def _offset(position: SourcePosition, source: str, partition: int) -> int:
    return position.sources.get(source, {}).get(partition, 0)


def between(low: SourcePosition, position: SourcePosition, high: SourcePosition) -> SourcePosition:
    """`position`, for the partitions of `high`: not before `low` and, unless `low` is past it, not past `high`."""

    def bounded(source: str, p: int, last: int) -> int:
        first = _offset(low, source, p)
        return max(first, min(last, position.sources.get(source, {}).get(p, last)))

    return SourcePosition(
        sources={
            source: {p: bounded(source, p, last) for p, last in offsets.items()}
            for source, offsets in high.sources.items()
        }
    )
