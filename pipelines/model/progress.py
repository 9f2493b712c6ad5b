"""Progress: what a driver says about its release. One record per batch, in the batch's own transaction."""

from __future__ import annotations

from pipelines.model.base import Frozen
from pipelines.model.names import OperationId, Ordinal, ReleaseName
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.unread import read_record


class Boundary(Frozen):
    """The end of a committed batch.

    `previous`: the position of the batch before it. The results here depend on it, too, as windows close by the
    watermark of that batch. `settled`: a further batch without input would change nothing.
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
    """Rows since the generation started."""

    rows_in: int = 0
    rows_out: int = 0
    late_dropped: int = 0
    dead_lettered: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in Counts.model_fields})


class Progress(Frozen):
    """A progress record. Only the newest one says how far the release is and what operations last asked of it.

    `barrier`: the last boundary flagged for a switch; followers may not pass it before the registry allows it.
    `evidence`: the last boundary flagged for a comparison.
    `paused`: the boundary where this release last paused to align. `aligned`: where it then met the other's mark.
    `reached`: where this generation met the goal that it was started with.
    """

    release: ReleaseName
    generation: Ordinal
    token: Ordinal
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
    """A progress record, written by this version or another. Raises ValueError with the reason if it can't be read."""
    return read_record(Progress, data)


# the fields of a progress record that are carried from record to record
MARKS = ("barrier", "evidence", "paused", "aligned", "reached")


class Pausing(Frozen):
    """A driver's announcement for operation `op`: no further batch; the current one ends at `by` at the latest."""

    op: OperationId
    by: SourcePosition


class Flagging(Frozen):
    """A driver's announcement for operation `op`: the current batch ends at `boundary`. It flags that, unless it
    already flagged an earlier boundary.
    """

    op: OperationId
    boundary: Boundary


class Heartbeat(Frozen):
    """What a driver says about itself each second. Sizes in bytes, rates in records per second.

    `batch_records`: how many records a first batch may hold. `behind_records`: records that were there when the last batch
    was planned, but were not part of it. `lag_records`: records between the committed position and the current end of
    the input. `best_records_per_s`: the rate of the fastest batch since this driver started its query, even if no
    heartbeat was sent during that batch. `copies_fail_s`: for how many seconds copies of its checkpoint to the bucket have
    failed; None: the last one succeeded, or there is none to make.
    """

    release: ReleaseName
    generation: Ordinal
    token: Ordinal
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
    copies_fail_s: float | None = None
    error: str | None = None
    pausing: Pausing | None = None
    flagging: Flagging | None = None


def read_heartbeat(data: bytes) -> Heartbeat:
    """A heartbeat, read as `read_progress` reads progress."""
    return read_record(Heartbeat, data)
