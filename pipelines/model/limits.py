"""How many records a batch may hold so that it fits into the memory of a driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The most records in the first batches of a query: an app with state in Python needs half a minute for so many
FIRST_RECORDS = 800_000
# A batch that was full and took no longer may be followed by one of twice as many records. What a batch costs besides its
# records, 0.4 s, then weighs less
QUICK_S = 2.0
# after a batch that took longer, the next one is as small as the first again
SLOW_S = 8.0
# assumed size of a record if there is none to measure: a topic that is filled later
ASSUMED_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is known about a topic: average bytes of a record, and how many records there are."""

    record_bytes: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Records that a batch may hold: over all sources, and of each source (source -> records)."""

    total: int
    by_source: Mapping[str, int]

    def grown(self, most: Limits) -> Limits:
        """Limits twice as high, but no higher than `most`."""
        doubled = {name: min(2 * records, most.by_source[name]) for name, records in self.by_source.items()}
        return Limits(total=min(2 * self.total, most.total), by_source=doubled)

    @property
    def full(self) -> int:
        """A batch with fewer records than this has read all that there was: Spark's shares are no smaller."""
        return max(1, min(self.total, *self.by_source.values()) // 2)


def limits_of(sizes: Mapping[str, Size | None], *, batch_bytes: int, at_most: int, together: bool) -> Limits:
    """The limits for `batch_bytes` of input: at least one record, at most `at_most`. `sizes`: source -> what is known
    about its record sizes.

    `together`: whether something else keeps the whole batch within the total.
    """
    known = [size for size in sizes.values() if size is not None and size.records]
    records = sum(size.records for size in known)
    mean = sum(size.record_bytes * size.records for size in known) // records if records else ASSUMED_BYTES

    def within(share_bytes: int, record_bytes: int) -> int:
        return max(1, min(at_most, share_bytes // max(1, record_bytes)))

    total = within(batch_bytes, mean)
    if together or len(sizes) == 1:
        return Limits(total=total, by_source=dict.fromkeys(sizes, total))
    share = batch_bytes // len(sizes)
    own = {name: within(share, size.record_bytes if size else ASSUMED_BYTES) for name, size in sizes.items()}
    return Limits(total=total, by_source=own)
