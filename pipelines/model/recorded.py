"""The batches of a generation, as its progress records them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatch:
    """A batch that Kafka has. `end`: where it ended. `moves`: the positions to which operations then moved the release, in
    order. `rows_in`: how many records it read. `watermark_ms`: the watermark that it ran with; None without one.
    """

    batch_id: int
    end: SourcePosition
    rows_in: int
    moves: tuple[SourcePosition, ...] = ()
    watermark_ms: int | None = None

    @property
    def left_at(self) -> SourcePosition:
        """Where the next batch began."""
        return self.moves[-1] if self.moves else self.end

    def knows(self, position: SourcePosition) -> bool:
        """Whether the release stood at `position` after this batch, at any time."""
        return any(position.same(each) for each in (self.end, *self.moves))


def recorded_batches(
    history: Iterable[Progress], generation: int, since: int = 0
) -> tuple[dict[int, RecordedBatch], bool]:
    """Number -> batch, of one generation, from batch `since` on; and whether the history reaches back further than that.

    `history`: progress records, oldest first.
    """
    found: dict[int, RecordedBatch] = {}
    reaches = False
    for progress in history:
        boundary = progress.boundary
        if progress.generation != generation or boundary.batch_id < since:
            reaches = True
            continue
        known = found.get(boundary.batch_id)
        if known is None:
            found[boundary.batch_id] = RecordedBatch(
                batch_id=boundary.batch_id,
                end=boundary.position,
                rows_in=progress.batch.rows_in,
                watermark_ms=boundary.watermark_ms,
            )
        # a batch has a further record for each mark of an operation
        elif not known.left_at.same(boundary.position):
            found[boundary.batch_id] = replace(known, moves=(*known.moves, boundary.position))
    return found, reaches
