"""Batches that a checkpoint lacks although Kafka has them: it is older than the result, as one from a backup is.

Each runs again as it ran before: from and to the same positions, with the same watermark. So state and watermark become
what they were. The batches are written nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pipelines.engine.checkpoint import Checkpoint
from pipelines.engine.gap import ProgressGap, reset_of
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Progress
from pipelines.model.recorded import RecordedBatch

# a query plans a batch in less time, even on busy cores; if none comes for so long, Spark sees nothing to do
_QUIET_S = 5.0


def is_behind(checkpoint: Checkpoint, last: Progress) -> bool:
    """Whether a checkpoint lacks more than a restart of its query repairs by itself: that runs the last planned batch again.

    `last`: the newest progress record of the generation.
    """
    number = last.boundary.batch_id
    if checkpoint.newest < number - 1:
        return True
    planned = checkpoint.last_planned()
    if planned is None or planned < number:
        return True
    return not checkpoint.position(checkpoint.planned(number)).same(last.boundary.position)


def is_half_moved(checkpoint: Checkpoint, recorded: Mapping[int, RecordedBatch], number: int) -> bool:
    """Whether only the checkpoint knows where the release stands after batch `number`, its last: it was moved there just
    before its driver was killed.
    """
    if not checkpoint.committed(number):
        return False
    batch = recorded.get(number)
    return batch is None or not batch.knows(checkpoint.position(checkpoint.planned(number)))


def move_to_record(checkpoint: Checkpoint, recorded: Mapping[int, RecordedBatch], release: str) -> None:
    """Moves a checkpoint whose last batch an operation has moved since. Raises ProgressGap if it is of another result."""
    done = checkpoint.last_committed()
    if done is None:
        return
    batch = recorded.get(done)
    standing = checkpoint.position(checkpoint.planned(done))
    if batch is None or not batch.knows(standing):
        raise ProgressGap(
            f"{release}: the checkpoint's batch {done} ends at {standing.told()}, which progress does not know",
            fix=reset_of(release, "does not belong to this result"),
        )
    if not standing.same(batch.left_at):
        checkpoint.move_end_of(done, batch.left_at)


def require_input(here: Mapping[str, Mapping[int, int]], first: Mapping[str, Mapping[int, int]], release: str) -> None:
    """Raises ProgressGap if the input no longer has the records from `here` on. `first`: the first offsets that are kept.

    Both: topic -> partition -> offset.
    """
    gone = [
        f"{topic}[{partition}] from {offset} to {first[topic][partition] - 1}"
        for topic, offsets in here.items()
        for partition, offset in sorted(offsets.items())
        if first.get(topic, {}).get(partition, offset) > offset
    ]
    if gone:
        raise ProgressGap(
            f"{release}: the batches that its checkpoint lacks read records that are deleted by now: {', '.join(gone)}",
            fix=reset_of(release, "is too old"),
        )


class CatchUp:
    """Leads a query through the recorded batches up to number `last`. `recorded`: number -> batch.

    `limit`: makes Spark end the next batch there; returns False if it can't. `at_once`: whether Spark reads from one position
    to the other in one batch. The query stops after batch `stops_after`, whose next one must be planned by hand.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        recorded: Mapping[int, RecordedBatch],
        last: int,
        *,
        release: str,
        limit: Callable[[SourcePosition], bool],
        at_once: Callable[[SourcePosition, SourcePosition], bool],
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.last = last
        self.stops_after = last
        self._checkpoint = checkpoint
        self._recorded = recorded
        self._release = release
        self._limit = limit
        self._at_once = at_once
        self._timer = timer
        self._ended_at = timer()

    def batch(self, number: int) -> RecordedBatch:
        """A batch that is to run again. Raises ProgressGap if progress no longer has it."""
        found = self._recorded.get(number)
        if found is None:
            raise ProgressGap(
                f"{self._release}: the checkpoint has no batch {number}, and progress no longer says where that batch ended",
                fix=reset_of(self._release, "is too old"),
            )
        return found

    def begin(self) -> None:
        """A query starts."""
        self.stops_after = self.last
        self._ended_at = self._timer()

    # -- for Spark's thread

    def check(self, number: int) -> None:
        """Raises ProgressGap if Spark has planned batch `number` otherwise than it ran before. None of it has run by then."""
        if number > self.last:
            return
        batch, planned = self.batch(number), self._checkpoint.planned(number)
        position = self._checkpoint.position(planned)
        if position != batch.end:
            raise ProgressGap(
                f"{self._release}: batch {number} is planned to end at {position.told()}, but it ended at {batch.end.told()}",
                fix=reset_of(self._release, "is older than the result"),
            )
        if batch.watermark_ms is not None and planned.watermark_ms != batch.watermark_ms:
            raise ProgressGap(
                f"{self._release}: batch {number} would run with watermark {planned.watermark_ms}, but it ran with {batch.watermark_ms}: "
                "its input has changed, or its function gives other rows than before",
                fix=reset_of(self._release, "can't catch up"),
            )

    def check_rows(self, number: int, rows_in: int) -> None:
        """Raises ProgressGap if batch `number` has read fewer records than before: compaction may have removed some.

        It may be more. A record of progress that only marks a boundary counts none, and may be the only one that is kept.
        """
        if number <= self.last and rows_in < (before := self.batch(number).rows_in):
            raise ProgressGap(
                f"{self._release}: batch {number} has read {rows_in} records again, but it counted {before} before: the input has lost "
                "some, or an executor was lost then, and some were counted twice",
                fix=reset_of(self._release, "can't catch up"),
            )

    def after(self, number: int) -> None:
        """Batch `number` has run. Makes the next one end where it ended before, or lets the query stop."""
        self._ended_at = self._timer()
        if number >= self.last:
            return
        here, next_one = self.batch(number), self.batch(number + 1)
        if here.moves or not self._comes_by_itself(here, next_one) or not self._limit(next_one.end):
            self._limit(here.end)
            self.stops_after = number

    def _comes_by_itself(self, here: RecordedBatch, next_one: RecordedBatch) -> bool:
        if next_one.end == here.end:
            # Spark runs a batch without input only if the watermark has moved
            return next_one.watermark_ms != here.watermark_ms
        return next_one.end.dominates(here.end) and self._at_once(here.end, next_one.end)

    # -- for the driver's thread

    def must_stop(self) -> bool:
        """Whether the query has done what it can by itself. If Spark plans nothing for a while, it sees nothing to do."""
        if self._checkpoint.committed(self.stops_after):
            return True
        done = self._checkpoint.last_committed()
        if self._timer() - self._ended_at > _QUIET_S and done is not None and done == self._checkpoint.last_planned():
            self.stops_after = done
        return self._checkpoint.committed(self.stops_after)
