"""Whether a batch that Spark asks for fits the committed ones. Without this check, rows could be in no result."""

from __future__ import annotations

from pipelines.engine.checkpoint import Checkpoint
from pipelines.errors import SwitchyardError
from pipelines.model.progress import Progress


class ProgressGap(SwitchyardError):
    """Spark asks for a batch that doesn't follow the last committed one."""


def reset_of(release: str, why: str) -> str:
    """What helps if the checkpoint of `release` can't be used. `why`: its predicate, for the message."""
    return f"the checkpoint {why}: restore the right one, or `switchyard reset {release} --to-earliest`"


def is_committed(batch_id: int, last: Progress | None, checkpoint: Checkpoint, *, release: str) -> bool:
    """Whether batch `batch_id` is committed already; False: it is the one after `last`, the last committed record.

    Raises ProgressGap if it is neither, or if it is planned otherwise than the committed one.
    """
    done = last.boundary.batch_id if last is not None else -1
    if last is not None and batch_id <= done:
        _must_be_known(batch_id, last, checkpoint, release)
        return True
    if batch_id != done + 1:
        raise ProgressGap(
            f"{release}: Spark's checkpoint is at batch {batch_id}, but batches are committed up to {done}",
            fix=reset_of(release, "does not belong to this result"),
        )
    return False


def _must_be_known(batch_id: int, progress: Progress, checkpoint: Checkpoint, release: str) -> None:
    last = progress.boundary
    position = checkpoint.position(checkpoint.planned(batch_id))
    known = position.same(last.position) if batch_id == last.batch_id else last.position.dominates(position)
    if not known:
        raise ProgressGap(
            f"{release}: batch {batch_id} is planned to end at {position.told()}, but the last committed "
            f"batch, {last.batch_id}, ends at {last.position.told()}",
            fix=reset_of(release, "is older than the result"),
        )
