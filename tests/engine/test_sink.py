"""The sink's decisions, with a writer of lists instead of Kafka: what it writes, replays, refuses and aborts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock, call

import pytest
from confluent_kafka import KafkaError, KafkaException

from pipelines.engine.gap import ProgressGap
from pipelines.engine.outages import is_outage
from pipelines.engine.sink import Sink
from pipelines.engine.turnstile import StopAtBoundary
from pipelines.engine.writer import OutcomeUnknown, Superseded, TransactionEnded
from pipelines.errors import SwitchyardError, Unavailable
from pipelines.kafka.progress import ProgressLost
from pipelines.model.pace import Pace
from pipelines.model.positions import SourcePosition
from tests.engine.sinks import RESULT, Rows, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_batch_is_written_with_its_boundary_counts_and_offsets(world: World) -> None:
    world.run(0, ("a", "1"), ("b", None))
    batch = world.run(1, ("a", "2"))
    assert batch.executed == ["written", "closed"]
    assert world.writer.written == [(RESULT, ("a", "1", None)), (RESULT, ("b", None, None)), (RESULT, ("a", "2", None))]
    last = world.writer.progress[-1]
    assert world.sink.last == last
    assert (last.boundary.batch_id, last.boundary.position.sources) == (1, {"trades": {0: 20}})
    assert last.boundary.previous is not None and last.boundary.previous.sources == {"trades": {0: 10}}
    assert last.result.topics == {RESULT: {0: 3}}
    assert (last.batch.rows_out, last.total.rows_out, last.total.rows_in, last.total.late_dropped) == (1, 3, 10, 2)
    assert world.writer.offsets == [{"trades": {0: 10}}, {"trades": {0: 20}}]


def test_the_best_rate_is_of_the_fastest_batch_that_was_committed(world: World) -> None:
    for number, batch_s in enumerate((5.0, 0.5, 2.0)):
        world.batch_s = batch_s
        world.run(number, ("a", "1"))
    assert (world.sink.batch_s, world.sink.best_records_per_s) == (2.0, 10.0)
    # executed again to catch up: its time says nothing
    again = world.make()
    again._timer = itertools.count().__next__
    again.connect()
    again.open()
    again.process_batch(Rows(("a", "1")), 2)  # type: ignore[arg-type]
    assert again.batch_s > 0 and again.best_records_per_s == 0


def test_a_batch_that_is_committed_is_executed_again_and_written_nowhere(world: World) -> None:
    world.run(0, ("a", "1"))
    world.run(1, ("a", "2"))
    before = list(world.writer.written)
    assert world.run(1, ("a", "2")).executed == ["noop"]
    # even if no new batch may run: Spark's log must catch up
    world.sink.turnstile.shut()
    assert world.run(1, ("a", "2")).executed == ["noop"]
    assert world.writer.written == before and len(world.writer.progress) == 2


def test_a_batch_that_the_checkpoint_lacked_is_checked_before_it_runs_and_counted_after(world: World) -> None:
    world.run(0, ("a", "1"))
    world.run(1, ("a", "2"))
    catch_up = MagicMock()
    world.sink.catch_up = catch_up
    rows = world.run(1, ("a", "2"))
    rows_in = world.writer.progress[-1].batch.rows_in
    assert rows.executed == ["noop"] and rows_in > 0
    assert catch_up.mock_calls == [call.check(1), call.check_rows(1, rows_in), call.after(1)]
    catch_up.check.side_effect = ProgressGap("it is another one")
    tried = world.sink.tried
    with pytest.raises(ProgressGap, match="it is another one"):
        world.run(2, ("a", "3"))
    # none of it has run
    assert world.sink.tried == tried and world.sink.failure is not None and world.sink.in_batch is None


def test_a_connection_that_is_lost_while_spark_reads_is_made_anew_before_the_batch_is_written(world: World) -> None:
    world.run(0, ("a", "1"))
    world.while_reading = world.writer.drop
    assert world.run(1, ("a", "2")).executed == ["written", "closed"]
    assert world.writer.connects == 2
    assert [progress.boundary.batch_id for progress in world.writer.progress] == [0, 1]


def test_a_batch_that_another_writer_has_committed_meanwhile_is_not_written_again(world: World) -> None:
    world.run(0, ("a", "1"))

    def overtaken() -> None:
        world.writer.drop()
        last = world.writer.progress[-1]
        boundary = last.boundary.model_copy(update={"batch_id": 1})
        world.writer.progress.append(last.model_copy(update={"boundary": boundary}))

    world.while_reading = overtaken
    before = list(world.writer.written)
    with pytest.raises(OutcomeUnknown, match="newest boundary"):
        world.run(1, ("a", "2"))
    assert world.writer.written == before


def test_a_gap_stops_the_driver(world: World) -> None:
    world.run(0, ("a", "1"))
    with pytest.raises(ProgressGap, match="checkpoint is at batch 2, but batches are committed up to 0"):
        world.run(2, ("a", "3"))
    assert len(world.writer.progress) == 1
    assert world.sink.failure is not None and world.sink.failure[0] == 2


@pytest.mark.parametrize(("again", "upto"), [(1, 500), (0, 500), (1, 15)])
def test_a_batch_that_is_run_again_must_be_the_one_that_was_committed(world: World, again: int, upto: int) -> None:
    world.run(0, ("a", "1"))
    world.run(1, ("a", "2"))
    offsets = world.checkpoint.path / "offsets"
    version, facts, _ = (offsets / str(again)).read_text().splitlines()
    # a checkpoint from a backup, whose lost plan Spark has made again
    (offsets / str(again)).write_text("\n".join([version, facts, json.dumps({"trades": {"0": upto}})]))
    sink = world.make()
    sink.connect()
    sink.open()
    rows = Rows(("a", "9"))
    with pytest.raises(ProgressGap, match=f"batch {again} is planned to end at .* the last committed batch, 1,"):
        sink.process_batch(rows, again)  # type: ignore[arg-type]
    assert rows.executed == []


@pytest.mark.parametrize(
    "hurry", [lambda sink: sink.turnstile.shut(), lambda sink: sink.turnstile.pace(Pace())], ids=["shut", "live"]
)
def test_a_paced_batch_is_committed_at_once_and_ends_when_it_is_told_to_hurry(
    world: World, hurry: Callable[[Sink], None]
) -> None:
    world.sink.turnstile.pace(Pace(least_s=3600))
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(world.run, 0, ("a", "1"))
        try:
            world.comes(lambda: bool(world.writer.progress))
            # the driver does this at each turn
            world.sink.turnstile.pace(Pace(least_s=3600))
            with pytest.raises(TimeoutError):
                batch.result(0.1)
        finally:
            hurry(world.sink)
        batch.result(10)


def test_after_a_batch_that_left_records_unread_no_record_waits_for_its_target(world: World) -> None:
    world.sink.turnstile.pace(Pace(target_s=3600))
    with ThreadPoolExecutor(1) as pool:
        world.leaves_records = True
        pool.submit(world.run, 0, ("a", "1")).result(10)
        world.leaves_records = False
        batch = pool.submit(world.run, 1, ("a", "2"))
        try:
            world.comes(lambda: len(world.writer.progress) == 2)
            with pytest.raises(TimeoutError):
                batch.result(0.1)
        finally:
            world.sink.turnstile.shut()
        batch.result(10)


def test_a_record_waits_for_planning_too_but_rare_records_make_no_pause_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(world.sink.turnstile._hurry, "wait", waits.append)
    world.sink.turnstile.pace(Pace(target_s=0.5))
    world.batch_s = 0.1
    for number, between_s in enumerate((60.0, 0.05, 60.0)):
        world.now_s += between_s
        world.run(number, ("a", "1"))
    # the time before the first call is none between two
    assert waits == pytest.approx([0.7, 0.55, 0.55])
    for number in range(3, 12):
        world.now_s += 3600.0
        world.run(number, ("a", "1"))
    # as if planning took 0.25 s
    assert waits[-1] == pytest.approx(0.0)
    # a query that starts again has planned nothing yet
    world.sink.open()
    world.now_s += 9.0
    world.run(12, ("a", "1"))
    assert waits[-1] == pytest.approx(0.7)


def test_a_batch_to_meet_another_release_is_not_paced(world: World) -> None:
    world.sink.turnstile.pace(Pace(least_s=3600))
    world.sink.open(1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(world.run, 0, ("a", "1")).result(10)


def test_a_shut_sink_lets_nothing_begin_and_a_budget_runs_out(world: World) -> None:
    world.sink.open(1)
    world.run(0, ("a", "1"))
    with pytest.raises(StopAtBoundary):
        world.run(1, ("a", "2"))
    assert world.sink.turnstile.refused_at_boundary
    assert len(world.writer.progress) == 1 and world.sink.in_batch is None
    world.sink.open()
    world.run(1, ("a", "2"))
    assert not world.sink.turnstile.refused_at_boundary and len(world.writer.progress) == 2


def test_a_held_sink_says_where_it_stands_at_the_latest_without_waiting(world: World) -> None:
    assert world.sink.turnstile.hold() is None
    world.sink.open()
    world.run(0, ("a", "1"))
    assert world.sink.turnstile.hold() == SourcePosition(sources={"trades": {0: 10}})
    world.sink.open()
    with ThreadPoolExecutor(1) as pool, world.under_way(1, ("a", "2")):
        assert world.sink.turnstile.hold() == SourcePosition(sources={"trades": {0: 20}})
        pool.submit(world.comes_to_rest)
    # the running batch is written, but the next may not start, even if a budget would allow it
    assert len(world.writer.progress) == 2
    for number in (2, 2):
        with pytest.raises(StopAtBoundary):
            world.run(number, ("a", "3"))


def test_the_end_of_a_batch_is_held_until_it_is_released(world: World) -> None:
    """A batch is held: committed in Kafka, while Spark waits and plans nothing."""
    sink = world.sink
    with ThreadPoolExecutor(1) as pool:
        sink.turnstile.pace(Pace(least_s=3600))
        batch = pool.submit(world.run, 0, ("a", "1"))
        world.comes(lambda: sink.last is not None)
        assert sink.turnstile.hold() == SourcePosition(sources={"trades": {0: 10}})
        world.comes(lambda: sink.turnstile.at_rest)
        assert not batch.done()
        # one more batch, which is held again
        sink.turnstile.resume(1)
        batch.result(10)
        batch = pool.submit(world.run, 1, ("a", "2"))
        world.comes(lambda: sink.turnstile.at_rest)
        assert len(world.writer.progress) == 2
        sink.announce(aligned="promote-1")
        # no limit, and none is held
        sink.turnstile.pace(Pace())
        sink.turnstile.resume(None)
        batch.result(10)
        pool.submit(world.run, 2, ("a", "3")).result(10)
        assert not sink.turnstile.at_rest and not sink.turnstile.will_run_a_batch


def test_a_batch_that_is_planned_when_the_sink_is_held_runs_and_is_held(world: World) -> None:
    sink = world.sink
    world.run(0, ("a", "1"))
    world.plan(1, 20)
    assert sink.turnstile.hold() == SourcePosition(sources={"trades": {0: 20}})
    assert sink.turnstile.will_run_a_batch
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(world.run, 1, ("a", "2"))
        world.comes(lambda: sink.turnstile.at_rest)
        # the query can be stopped, and nothing is started after it
        sink.turnstile.shut()
        batch.result(10)
    with pytest.raises(StopAtBoundary):
        world.run(2, ("a", "3"))


@pytest.mark.parametrize("where", ["begin", "write", "acknowledged", "commit"])
@pytest.mark.parametrize(
    "error", [KafkaException(KafkaError(KafkaError._TIMED_OUT)), Unavailable("gone"), ValueError("odd")]
)
def test_whatever_ends_a_batch_takes_it_back_and_the_next_try_writes_it_once(
    world: World, where: str, error: Exception
) -> None:
    world.run(0, ("a", "1"))
    world.writer.fail[where] = error
    with pytest.raises(type(error)):
        world.run(1, ("a", "2"))
    assert world.writer.aborts == 1 and len(world.writer.progress) == 1
    assert (world.sink.failure, world.sink.tried) == ((1, error), 1)
    world.sink.open()
    world.run(1, ("a", "2"))
    assert [record[1] for _, record in world.writer.written] == ["1", "2"]


def test_an_unanswered_commit_that_succeeded_is_not_repeated(world: World) -> None:
    world.run(0, ("a", "1"))
    world.writer.fail["commit"], world.writer.lost_commit_counts = OutcomeUnknown("no answer"), True
    world.run(1, ("a", "2"))
    assert world.writer.connects == 2
    assert world.sink.last is not None and world.sink.last.boundary.batch_id == 1
    world.run(2, ("a", "3"))
    assert [record[1] for _, record in world.writer.written] == ["1", "2", "3"]


def test_an_unanswered_commit_that_failed_is_repeated(world: World) -> None:
    world.run(0, ("a", "1"))
    world.writer.fail["commit"] = OutcomeUnknown("no answer")
    with pytest.raises(OutcomeUnknown):
        world.run(1, ("a", "2"))
    world.run(1, ("a", "2"))
    assert [record[1] for _, record in world.writer.written] == ["1", "2"]


def test_a_driver_that_was_superseded_never_connects_again(world: World) -> None:
    world.run(0, ("a", "1"))
    world.writer.fail["commit"] = OutcomeUnknown("no answer")
    world.newer = Superseded("token 2 has it")
    with pytest.raises(Superseded):
        world.run(1, ("a", "2"))
    # connecting would have fenced the newer driver
    assert world.writer.connects == 1


def test_a_batch_whose_transaction_the_broker_has_ended_is_written_again(world: World) -> None:
    world.run(0, ("a", "1"))
    world.writer.fail["commit"] = Superseded("fenced, as the client says")
    with pytest.raises(TransactionEnded, match="SWITCHYARD_TRANSACTION_TIMEOUT_S"):
        world.run(1, ("a", "2"))
    assert not world.writer.connected
    world.sink.open()
    world.run(1, ("a", "2"))
    assert [record[1] for _, record in world.writer.written] == ["1", "2"]
    assert world.writer.connects == 2


def test_a_driver_that_is_fenced_by_a_newer_one_is_superseded(world: World) -> None:
    world.run(0, ("a", "1"))
    world.writer.fail["commit"], world.newer = Superseded("fenced"), Superseded("token 2 has it")
    with pytest.raises(Superseded, match="token 2 has it"):
        world.run(1, ("a", "2"))
    assert world.writer.connects == 1


def test_a_connection_that_fails_halfway_is_made_again_before_the_next_batch(world: World) -> None:
    world.run(0, ("a", "1"))
    seed = world.sink.last
    assert seed is not None
    world.writer.progress.clear()
    world.sink.destination = replace(
        world.sink.destination, generation=2, seed=seed.model_copy(update={"generation": 2})
    )
    # the first record of the generation can't be written
    world.writer.fail["begin"] = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    with pytest.raises(KafkaException):
        world.sink.connect()
    assert not world.writer.connected
    world.run(1, ("a", "2"))
    assert [(p.generation, p.boundary.batch_id) for p in world.writer.progress] == [(2, 0), (2, 1)]


def test_after_an_outage_the_next_batch_is_written_by_another_producer(world: World) -> None:
    world.run(0, ("a", "1"))
    world.sink.disconnect()
    assert not world.writer.connected
    world.run(1, ("a", "2"))
    assert [record[1] for _, record in world.writer.written] == ["1", "2"]
    assert world.writer.connects == 2


def test_no_older_boundary_is_written_after_a_commit_that_was_not_answered(world: World) -> None:
    def away() -> None:
        world.writer.while_connecting = dict
        raise Unavailable("no Kafka broker answers")

    world.run(0, ("a", "1"))
    world.writer.fail["commit"], world.writer.lost_commit_counts = OutcomeUnknown("no answer"), True
    world.writer.while_connecting = away
    with pytest.raises(Unavailable):
        world.run(1, ("a", "2"))
    # the driver knows only batch 0
    with pytest.raises(OutcomeUnknown):
        world.sink.announce(paused="promote-1")
    world.sink.announce(paused="promote-1")
    assert [p.boundary.batch_id for p in world.writer.progress] == [0, 1, 1]


def test_to_a_driver_lost_progress_is_an_outage_until_its_watch_has_looked(world: World) -> None:
    """A broker may not know the topic yet, and then nothing is lost."""

    def unknown() -> None:
        world.writer.while_connecting = dict
        raise ProgressLost("sums.v1")

    world.writer.while_connecting = unknown
    with pytest.raises(Unavailable, match=r"progress sums\.v1\.progress of sums\.v1 is gone") as error:
        world.sink.connect()
    assert is_outage(error.value) and not world.writer.connected
    world.run(0, ("a", "1"))
    assert [p.boundary.batch_id for p in world.writer.progress] == [0]


def test_a_batch_whose_end_is_held_has_no_transaction_open(world: World) -> None:
    world.run(0, ("a", "1"))
    with ThreadPoolExecutor(1) as pool:
        world.sink.turnstile.rest()
        held = pool.submit(world.run, 1, ("a", "2"))
        world.comes(lambda: world.sink.turnstile.at_rest)
        assert world.writer._open is None and len(world.writer.progress) == 2
        world.sink.turnstile.resume(None)
        held.result(10)


def test_a_driver_that_froze_while_it_connected_does_not_replace_a_newer_one(world: World) -> None:
    def taken_over() -> None:
        world.newer = Superseded("token 2 has it")

    world.run(0, ("a", "1"))
    frozen = world.make()
    world.writer.while_connecting = taken_over
    with pytest.raises(Superseded):
        frozen.connect()
    assert not world.writer.connected
    frozen.open()
    with pytest.raises(Superseded):
        world.plan(1, 20)
        frozen.process_batch(Rows(("a", "2")), 1)  # type: ignore[arg-type]
    assert [record[1] for _, record in world.writer.written] == ["1"]


def test_progress_of_an_earlier_generation_is_not_this_ones(world: World) -> None:
    world.run(0, ("a", "1"))
    old = world.writer.progress[-1]
    world.writer.progress.append(old.model_copy(update={"generation": 0}))
    again = world.make()
    again.connect()
    assert again.last is None


def test_progress_of_a_newer_token_stops_the_driver(world: World) -> None:
    world.run(0, ("a", "1"))
    world.writer.progress.append(world.writer.progress[-1].model_copy(update={"token": 9}))
    with pytest.raises(SwitchyardError, match="newer token, 9"):
        world.make(token=8).connect()


def test_a_batch_is_settled_if_another_without_input_would_change_nothing(tmp_path: Path) -> None:
    plain, marked = World(tmp_path / "a", watermarked=False), World(tmp_path / "b")
    plain.run(0, ("a", "1"))
    assert plain.writer.progress[-1].boundary.settled and plain.writer.progress[-1].boundary.watermark_ms is None
    marked.run(0, ("a", "1"))
    assert not marked.writer.progress[-1].boundary.settled
    marked.run(1, upto=10)
    assert marked.writer.progress[-1].boundary.settled
