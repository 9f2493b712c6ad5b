"""The marks of boundaries: which boundary is flagged for the operation whose order is in force. The sink writes them."""

from __future__ import annotations

from collections.abc import Callable

from pipelines.engine.checkpoint import Checkpoint
from pipelines.model.entries import MarkOrdered
from pipelines.model.positions import ResultPosition
from pipelines.model.progress import MARKS, Boundary, Flagging, Mark, Progress
from pipelines.model.switch import flags, foreseen


class Marks:
    """Says which marks a boundary of the release gets. It has no lock and writes nothing.

    `last`: the last committed progress record. `in_batch`: the batch that is under way. `watermarked`: as in
    `Destination`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        watermarked: bool,
        *,
        last: Callable[[], Progress | None],
        in_batch: Callable[[], int | None],
    ) -> None:
        self._checkpoint = checkpoint
        self._watermarked = watermarked
        self._last = last
        self._in_batch = in_batch
        self._order: MarkOrdered | None = None

    # -- for the driver's thread

    def flag_for(self, order: MarkOrdered | None) -> None:
        """Flags the boundary that `order` asks for; None: no order is in force."""
        self._order = order

    def has_flagged(self, order: MarkOrdered) -> bool:
        """Whether the boundary that `order` asks for has been flagged."""
        already = self._already(order)
        return already is not None and already.op == order.id

    def foreseen(self) -> Flagging | None:
        """The boundary that the batch under way will flag for the standing order; None: no batch will."""
        batch_id, order = self._in_batch(), self._order
        # read after `in_batch`, so that a batch that has just ended doesn't count as under way
        last = self._last()
        if batch_id is None or order is None or last is None or batch_id != last.boundary.batch_id + 1:
            return None
        boundary = self._checkpoint.boundary(batch_id, last.boundary.position, watermarked=self._watermarked)
        return foreseen(order, boundary, self._already(order))

    # -- for the sink, which holds its lock: what these say must still be so when it is committed

    def at(self, boundary: Boundary, result: ResultPosition) -> dict[str, Mark | None]:
        """Mark by its field of the progress record at `boundary`, the end of a batch: those so far, and that of the order."""
        # read once: the driver's thread may replace it
        last, order = self._last(), self._order
        marks: dict[str, Mark | None] = {name: getattr(last, name) if last else None for name in MARKS}
        if order is not None and flags(order, boundary.previous, boundary, self._already(order)):
            marks |= _flag(order, boundary, result)
        return marks

    def idle(self) -> Progress | None:
        """The last progress record with its boundary flagged for the standing order, because there is no more input.

        None: nothing is to be flagged, or a further batch is planned, or one without input would change something. A
        planned batch flags its own boundary: `foreseen` may have told of it, even by a driver that has died.
        """
        order, last = self._order, self._last()
        if order is None or last is None or not self._checkpoint.committed(last.boundary.batch_id):
            return None
        if self._checkpoint.last_planned() != last.boundary.batch_id:
            return None
        if not self._checkpoint.settled(last.boundary.batch_id):
            return None
        boundary = last.boundary.model_copy(update={"settled": True})
        if not flags(order, boundary.previous, boundary, self._already(order)):
            return None
        return last.model_copy(update={"boundary": boundary, **_flag(order, boundary, last.result)})

    def _already(self, order: MarkOrdered) -> Mark | None:
        """The last mark of the order's kind."""
        last = self._last()
        if last is None:
            return None
        return last.evidence if order.switch is None else last.barrier


def _flag(order: MarkOrdered, boundary: Boundary, result: ResultPosition) -> dict[str, Mark]:
    name = "evidence" if order.switch is None else "barrier"
    return {name: Mark(op=order.id, boundary=boundary, result=result)}


def announced(
    last: Progress, *, paused: str | None = None, aligned: str | None = None, reached: str | None = None
) -> Progress:
    """`last` with marks at its boundary: the operations of `Sink.announce`. Marks without an operation stay as they are."""
    said = {"paused": paused, "aligned": aligned, "reached": reached}
    changes = {
        name: Mark(op=op, boundary=last.boundary, result=last.result) for name, op in said.items() if op is not None
    }
    return last.model_copy(update=changes)
