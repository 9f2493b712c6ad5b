"""Progress: what a driver says of its release, one record per batch, in the batch's own transaction."""

from __future__ import annotations

from pipelines.model.base import Frozen
from pipelines.model.names import OperationId, ReleaseName
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.unread import read_record


class Boundary(Frozen):
    """The end of a committed batch.

    `previous`: the position of the batch before it, on which the results here depend, too (windows close by
    the watermark of the batch before). `settled`: a further batch without input would change nothing.
    `watermark_ms`: the watermark that this batch ran with, milliseconds since the epoch; None without one.
    """

    batch_id: int
    position: SourcePosition
    previous: SourcePosition | None = None
    watermark_ms: int | None = None
    settled: bool = False


class Mark(Frozen):
    """A boundary that a driver flagged for operation `op`, with the result position there."""

    op: OperationId
    boundary: Boundary
    result: ResultPosition


class Counts(Frozen):
    """Rows since the generation began."""

    rows_in: int = 0
    rows_out: int = 0
    late_dropped: int = 0
    dead_lettered: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in Counts.model_fields})


class Progress(Frozen):
    """A progress record. The newest one alone tells how far the release is and what it was last asked for:

    `barrier`: the last boundary flagged for a switch; followers may not pass it before the registry says so.
    `evidence`: the last boundary flagged for a comparison.
    `paused`: the boundary where this release last paused to be aligned. `aligned`: where it then met the other's mark.
    `reached`: where this generation met the boundary that its beginning set it.
    """

    release: ReleaseName
    generation: int
    token: int
    boundary: Boundary
    result: ResultPosition
    batch: Counts = Counts()
    total: Counts = Counts()
    at_ms: int
    barrier: Mark | None = None
    evidence: Mark | None = None
    paused: Mark | None = None
    aligned: Mark | None = None
    reached: Mark | None = None


def read_progress(data: bytes) -> Progress:
    """A progress record, of this version or another; raises ValueError, saying why, for one that can't be read."""
    return read_record(Progress, data)


# the names of what a progress record carries along
MARKS = ("barrier", "evidence", "paused", "aligned", "reached")


class Pausing(Frozen):
    """A driver's word for operation `op`: it begins no further batch, and the one under way ends at `by` at the latest."""

    op: OperationId
    by: SourcePosition


class Flagging(Frozen):
    """A driver's word for operation `op`: the batch under way ends at `boundary`, which it flags if none before it was."""

    op: OperationId
    boundary: Boundary


class Heartbeat(Frozen):
    """What a driver says of itself each second. Sizes in bytes, rates in records per second.

    `batch_records`: records that a batch of its may hold.
    `behind_records`: records that were there when the last batch was planned and that it left behind.
    `lag_records`: records between the committed position and the end of the input now.
    `best_records_per_s`: of the fastest batch since this driver began its query; no beat need fall into it.
    """

    release: ReleaseName
    generation: int
    token: int
    host: str
    pid: int
    at_ms: int
    state: str
    batch_id: int = -1
    batch_records: int | None = None
    behind_records: int | None = None
    lag_records: int | None = None
    input_records_per_s: float = 0.0
    processed_records_per_s: float = 0.0
    best_records_per_s: float = 0.0
    batch_ms: int = 0
    watermark_ms: int | None = None
    total: Counts = Counts()
    rss_bytes: int = 0
    heap_max_bytes: int = 0
    heap_used_bytes: int = 0
    error: str | None = None
    pausing: Pausing | None = None
    flagging: Flagging | None = None


def read_heartbeat(data: bytes) -> Heartbeat:
    """A heartbeat, as `read_progress` reads progress."""
    return read_record(Heartbeat, data)
