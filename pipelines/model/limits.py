"""How many records a batch may hold, so that the memory of a driver holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# of a record, where there is none to look at: a topic that is filled later
ASSUMED_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is known of a topic: bytes of a record, on average, and how many records there are."""

    record_bytes: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Records that a batch may hold: of all sources, and of each one alone (source -> records)."""

    total: int
    by_source: Mapping[str, int]

    @property
    def full(self) -> int:
        """With fewer records than this a batch has left nothing of what there was: Spark's shares, rounded down, are no less."""
        return max(1, min(self.total, *self.by_source.values()) // 2)


def limits_of(sizes: Mapping[str, Size | None], *, batch_bytes: int, at_most: int, together: bool) -> Limits:
    """The limits by `batch_bytes` of input, at least one record and no more than `at_most`. `sizes`: source -> what is known.

    `together`: whether something else sees to it that the batch as a whole is no larger than the total.
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
