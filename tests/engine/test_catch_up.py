"""How a checkpoint that is older than the result is led through the batches that it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.engine.catch_up import CatchUp, is_behind, is_half_moved, move_to_record, require_input
from pipelines.engine.checkpoint import Checkpoint
from pipelines.engine.gap import ProgressGap
from pipelines.model.positions import SourcePosition
from pipelines.model.recorded import RecordedBatch
from tests.engine.test_checkpoint import commit, plan
from tests.model.test_recorded import at, record

RELEASE = "sums.v1"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """One that has committed batches 0 and 1, which end at 10 and 20."""
    made = Checkpoint(tmp_path / "g1.t1", {"trades": "trades"}, RELEASE)
    for number in range(2):
        plan(made, number, {"trades": {0: 10 * (number + 1)}}, watermark_ms=1_000 * number)
        commit(made, number, next_watermark_ms=1_000 * (number + 1))
    return made


def batch(number: int, end: int, *moves: int, watermark_ms: int | None = None) -> RecordedBatch:
    return RecordedBatch(
        batch_id=number,
        end=at(end),
        rows_in=10,
        moves=tuple(map(at, moves)),
        watermark_ms=1_000 * number if watermark_ms is None else watermark_ms,
    )


class World:
    """Batches that are led through, with the ends that Spark was given."""

    def __init__(self, checkpoint: Checkpoint, *recorded: RecordedBatch, most: int = 100) -> None:
        self.ends: list[SourcePosition] = []
        self.sources_known = True
        self.now_s = 0.0
        self.catch_up = CatchUp(
            checkpoint,
            {each.batch_id: each for each in recorded},
            max(each.batch_id for each in recorded),
            release=RELEASE,
            limit=self._limit,
            at_once=lambda here, end: end.records_since(here) < most,
            timer=lambda: self.now_s,
        )

    def _limit(self, end: SourcePosition) -> bool:
        self.ends.append(end)
        return self.sources_known


def test_a_checkpoint_lacks_more_than_a_restart_repairs(checkpoint: Checkpoint) -> None:
    assert not is_behind(checkpoint, record(1, 20))
    # killed between Kafka's commit and Spark's
    plan(checkpoint, 2, {"trades": {0: 30}}, watermark_ms=2_000)
    assert not is_behind(checkpoint, record(2, 30))
    # as Spark plans it now, batch 2 is another one
    assert is_behind(checkpoint, record(2, 31))
    assert is_behind(checkpoint, record(3, 30))
    # moved by an operation since
    assert is_behind(checkpoint, record(1, 25))


def test_a_checkpoint_without_the_last_plan_is_behind(checkpoint: Checkpoint) -> None:
    assert is_behind(checkpoint, record(2, 30))


def test_a_checkpoint_is_moved_to_where_an_operation_moved_the_release(checkpoint: Checkpoint) -> None:
    move_to_record(checkpoint, {1: batch(1, 20, 24, 26)}, RELEASE)
    assert checkpoint.position(checkpoint.planned(1)) == at(26)
    # from any of these positions
    move_to_record(checkpoint, {1: batch(1, 20, 26, 28)}, RELEASE)
    assert checkpoint.position(checkpoint.planned(1)) == at(28)


@pytest.mark.parametrize("recorded", [{1: batch(1, 21)}, {0: batch(0, 10)}], ids=["another end", "no such batch"])
def test_a_checkpoint_of_another_result_is_refused(checkpoint: Checkpoint, recorded: dict[int, RecordedBatch]) -> None:
    with pytest.raises(ProgressGap, match=r"batch 1 ends at trades\[0\] 20, which progress does not know") as caught:
        move_to_record(checkpoint, recorded, RELEASE)
    assert f"switchyard reset {RELEASE} --to-earliest" in caught.value.fix


def test_a_release_that_was_being_moved_is_left_to_its_operation(checkpoint: Checkpoint) -> None:
    assert not is_half_moved(checkpoint, {1: batch(1, 20)}, 1)
    checkpoint.move_end_of(1, at(25))
    assert is_half_moved(checkpoint, {1: batch(1, 20)}, 1)
    # an older checkpoint was moved before that batch
    assert not is_half_moved(checkpoint, {2: batch(2, 30)}, 2)


def test_each_batch_ends_where_it_ended_before(checkpoint: Checkpoint) -> None:
    world = World(checkpoint, batch(2, 30), batch(3, 45), batch(4, 45))
    world.catch_up.after(2)
    world.catch_up.after(3)
    # the last one leads nowhere: the sink lets no new batch run
    world.catch_up.after(4)
    assert world.ends == [at(45), at(45)] and world.catch_up.stops_after == 4


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        ((batch(2, 30, 33), batch(3, 45)), "the release was moved in between"),
        ((batch(2, 30), batch(3, 130)), "Spark would split it"),
        ((batch(2, 30, watermark_ms=5), batch(3, 30, watermark_ms=5)), "Spark sees nothing to do"),
        ((batch(2, 30), batch(3, 29)), "the release was moved back"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_batch_that_spark_would_not_plan_alike_is_planned_by_hand(
    checkpoint: Checkpoint, recorded: tuple[RecordedBatch, ...], why: str
) -> None:
    world = World(checkpoint, *recorded)
    world.catch_up.after(2)
    # until then it reads nothing more
    assert world.ends == [at(30)] and world.catch_up.stops_after == 2
    plan(checkpoint, 2, {"trades": {0: 30}}, watermark_ms=2_000)
    assert not world.catch_up.must_stop()
    commit(checkpoint, 2, next_watermark_ms=0)
    assert world.catch_up.must_stop()


def test_without_spark_s_sources_each_batch_is_planned_by_hand(checkpoint: Checkpoint) -> None:
    world = World(checkpoint, batch(2, 30), batch(3, 45))
    world.sources_known = False
    world.catch_up.after(2)
    assert world.catch_up.stops_after == 2
    world.catch_up.begin()
    assert world.catch_up.stops_after == 3


def test_a_query_that_plans_nothing_is_stopped(checkpoint: Checkpoint) -> None:
    world = World(checkpoint, batch(2, 30), batch(3, 45))
    plan(checkpoint, 2, {"trades": {0: 30}}, watermark_ms=2_000)
    world.now_s = 60.0
    # batch 2 may still run
    assert not world.catch_up.must_stop()
    world.catch_up.after(2)
    commit(checkpoint, 2, next_watermark_ms=0)
    assert not world.catch_up.must_stop()
    world.now_s += 60.0
    assert world.catch_up.must_stop() and world.catch_up.stops_after == 2


def test_a_batch_that_is_planned_otherwise_does_not_run(checkpoint: Checkpoint) -> None:
    world = World(checkpoint, batch(2, 30), batch(3, 45))
    plan(checkpoint, 2, {"trades": {0: 30}}, watermark_ms=2_000)
    world.catch_up.check(2)
    plan(checkpoint, 2, {"trades": {0: 29}}, watermark_ms=2_000)
    with pytest.raises(
        ProgressGap, match=r"batch 2 is planned to end at trades\[0\] 29, but it ended at trades\[0\] 30"
    ):
        world.catch_up.check(2)
    plan(checkpoint, 2, {"trades": {0: 30}}, watermark_ms=1_999)
    with pytest.raises(ProgressGap, match="batch 2 would run with watermark 1999, but it ran with 2000"):
        world.catch_up.check(2)
    # a new batch is the sink's matter
    world.catch_up.check(4)


def test_a_batch_must_read_what_it_read_before(checkpoint: Checkpoint) -> None:
    world = World(checkpoint, batch(2, 30))
    world.catch_up.check_rows(2, 10)
    # a record that only marks its boundary may be all that is left of it
    world.catch_up.check_rows(2, 11)
    with pytest.raises(ProgressGap, match="batch 2 has read 9 records again, but it counted 10 before"):
        world.catch_up.check_rows(2, 9)
    world.catch_up.check_rows(3, 9)


def test_a_batch_of_which_progress_says_nothing_any_more_can_not_run_again(checkpoint: Checkpoint) -> None:
    world = World(checkpoint, batch(7, 30))
    with pytest.raises(ProgressGap, match="has no batch 2, and progress no longer says where that batch ended"):
        world.catch_up.batch(2)


def test_deleted_input_can_not_be_read_again() -> None:
    here = {"trades": {0: 12, 1: 7}}
    require_input(here, {"trades": {0: 12, 1: 0}}, RELEASE)
    with pytest.raises(ProgressGap, match=r"records that are deleted by now: trades\[1\] from 7 to 8"):
        require_input(here, {"trades": {0: 0, 1: 9}}, RELEASE)
