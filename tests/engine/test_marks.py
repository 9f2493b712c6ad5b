"""The marks of boundaries, in a sink on a writer of lists: what is flagged for an order, foretold, and announced."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.engine.marks import Marks
from pipelines.errors import SwitchyardError
from pipelines.model.entries import MarkOrdered
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Progress
from tests.engine.sinks import RELEASE, Rows, World
from tests.engine.test_checkpoint import commit


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def order(op: str = "op-1", *, past: int, switch: int | None = 2) -> MarkOrdered:
    return MarkOrdered(id=op, release=RELEASE, past=SourcePosition(sources={"trades": {0: past}}), switch=switch,
                       alias="sums", deadline_ms=2**60)  # fmt: skip


def test_the_first_boundary_whose_predecessor_is_past_the_mark_is_flagged_once_and_stays_known(world: World) -> None:
    world.run(0, ("a", "1"))
    world.sink.marks.flag_for(order(past=20))
    world.run(1, ("a", "2"))
    assert world.writer.progress[-1].barrier is None
    world.run(2, ("a", "3"))
    barrier = world.writer.progress[-1].barrier
    assert barrier is not None and (barrier.op, barrier.boundary.batch_id) == ("op-1", 2)
    world.run(3, ("a", "4"))
    assert world.writer.progress[-1].barrier == barrier
    assert world.writer.progress[-1].evidence is None


def test_what_will_be_flagged_is_said_while_its_batch_is_under_way(world: World) -> None:
    world.run(0, ("a", "1"))
    assert world.sink.marks.foreseen() is None
    world.sink.marks.flag_for(order(past=20))
    with world.under_way(1, ("a", "2")):
        # the previous boundary is not past the mark
        assert world.sink.marks.foreseen() is None
    assert world.sink.marks.foreseen() is None
    with world.under_way(2, ("a", "3")):
        word = world.sink.marks.foreseen()
    barrier = world.writer.progress[-1].barrier
    assert word is not None and barrier is not None
    assert (word.op, word.boundary) == (barrier.op, barrier.boundary)
    with world.under_way(3, ("a", "4")):
        assert world.sink.marks.foreseen() is None


def test_an_evidence_mark_is_no_barrier(world: World) -> None:
    world.sink.marks.flag_for(order(past=0, switch=None))
    world.run(0, ("a", "1"))
    last = world.writer.progress[-1]
    assert last.evidence is not None and last.barrier is None


def test_an_idle_release_flags_its_last_boundary_only_when_it_is_settled_and_committed(world: World) -> None:
    world.run(0, ("a", "1"))
    world.plan(1, 20, watermark_ms=5)
    world.sink.process_batch(Rows(("a", "2")), 1)  # type: ignore[arg-type]
    world.sink.marks.flag_for(order(past=20))
    # Spark has not committed it
    assert not world.sink.flag_idle()
    commit(world.checkpoint, 1, next_watermark_ms=9)
    # the watermark moved: an empty batch would still emit rows
    assert not world.sink.flag_idle()
    commit(world.checkpoint, 1, next_watermark_ms=5)
    written = len(world.writer.written)
    assert world.sink.flag_idle()
    barrier = world.writer.progress[-1].barrier
    assert barrier is not None and barrier.boundary.settled and barrier.boundary.batch_id == 1
    assert len(world.writer.written) == written and world.writer.offsets[-1] is None
    assert not world.sink.flag_idle()


def test_a_release_with_a_planned_batch_is_not_idle(world: World) -> None:
    """A driver that died in batch 1 may have said that this one will be flagged, and the other release has run to its
    end. The next driver runs the same batch and flags no earlier boundary.
    """
    world.run(0, ("a", "1"))
    commit(world.checkpoint, 0, next_watermark_ms=0)
    world.plan(1, 20)
    world.sink.marks.flag_for(order(past=10))
    assert not world.sink.flag_idle()
    with world.under_way(1, ("a", "2")):
        word = world.sink.marks.foreseen()
    barrier = world.writer.progress[-1].barrier
    assert word is not None and barrier is not None
    assert (word.op, word.boundary) == (barrier.op, barrier.boundary)
    assert barrier.boundary.batch_id == 1


def test_what_is_announced_is_the_last_boundary_and_no_batch(world: World) -> None:
    with pytest.raises(SwitchyardError, match="no committed batch yet"):
        world.sink.announce(paused="op-1")
    world.run(0, ("a", "1"))
    world.sink.announce(paused="op-1")
    paused = world.writer.progress[-1]
    assert paused.paused is not None and paused.paused.op == "op-1"
    assert (paused.boundary, paused.total, paused.batch.rows_in) == (
        world.writer.progress[0].boundary,
        world.writer.progress[0].total,
        0,
    )
    world.sink.announce(aligned="op-1")
    assert world.writer.progress[-1].aligned is not None and world.writer.progress[-1].paused == paused.paused


def test_a_batch_that_ends_while_it_is_asked_for_is_not_foreseen(world: World) -> None:
    world.run(0, ("a", "1"))
    under_way: int | None = 1

    def in_batch() -> int | None:
        # Spark's thread ends the batch right after it was read
        nonlocal under_way
        found, under_way = under_way, None
        if found is not None:
            world.run(found, ("a", "2"))
        return found

    def last() -> Progress | None:
        return world.sink.last

    marks = Marks(world.checkpoint, True, last=last, in_batch=in_batch)
    # it would be flagged, but the order came too late
    marks.flag_for(order(past=10))
    assert marks.foreseen() is None
    assert world.sink.last is not None and world.sink.last.boundary.batch_id == 1


def test_an_order_is_done_once_its_own_boundary_is_flagged(world: World) -> None:
    world.sink.marks.flag_for(order(past=0))
    assert not world.sink.marks.has_flagged(order(past=0))
    world.run(0, ("a", "1"))
    world.run(1, ("a", "2"))
    assert world.sink.marks.has_flagged(order(past=0))
    # of another operation, and of the other kind
    assert not world.sink.marks.has_flagged(order("op-2", past=0))
    assert not world.sink.marks.has_flagged(order(past=0, switch=None))
