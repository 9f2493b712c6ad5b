"""A reader of another app's result, a bounded replay, and a reset of some partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.plans.stages.generations import BeginGeneration
from pipelines.engine.checkpoint import forget
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.topics import topic_names
from pipelines.model.reset import Target
from pipelines.settings import Settings
from tests.reset.world import World, ends, following, live_world, reader_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]

EARLIEST = Target(kind="earliest", text="--to-earliest")
MIDDLE = Target(kind="offset", text="--to-offset 60", number=60)


@pytest.fixture
def world(request: pytest.FixtureRequest, broker: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    with live_world(broker, spark, request.param, tmp_path, max_records_per_batch=150) as made:
        yield made


@pytest.mark.long
@pytest.mark.parametrize("world", ["stateless"], indirect=True)
def test_who_reads_a_result_is_told_and_follows_by_a_reset_of_its_own(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    folder.mkdir()
    with reader_of(world, folder) as reader:
        reader.make_live()
        assert reader.result() == reader.expected({})
        plan = plan_reset(world.context, world.name, Request(target=EARLIEST, stop=True))
        assert plan.facts["read by"] == (
            f"{reader.name}: they read the result of this generation, which gets no more records; "
            "each needs a version that reads the next generation's result"
        )
        again = plan_reset(world.context, world.name, Request(target=EARLIEST, output="keep", stop=True))
        assert "treat the repeated records as new ones; each needs a reset of its own" in again.facts["read by"]
        with pytest.raises(Refused, match=rf"can't be deleted: still needed by {reader.name}"):
            plan_reset(world.context, world.name, Request(target=EARLIEST, output="truncate", stop=True))
        with following(reader) as follower:
            reader.reset(EARLIEST, stop=True)
            world.produce(20)
            world.settle()
            reader.settle()
            follower.comes_to(reader.expected({}))
        assert reader.result() == reader.expected({})


def times_of(world: World, offset: int) -> tuple[int, dict[int, int]]:
    """The time of the first record at an offset, and each partition's offset at that time."""
    records = world.records()
    at_ms = min(r.time_ms for r in records if r.offset == offset)
    return at_ms, {p: min(r.offset for r in records if r.partition == p and r.time_ms >= at_ms) for p in (0, 1)}


@pytest.mark.parametrize("world", ["stateless"], indirect=True)
def test_a_replay_goes_from_one_time_to_another(world: World) -> None:
    world.stop()
    (start_ms, start), (end_ms, end) = times_of(world, 60), times_of(world, 80)
    assert start != end
    plan = plan_reset(
        world.context,
        world.name,
        Request(
            target=Target(kind="datetime", text="--to-datetime 12:00", at_ms=start_ms),
            until=Target(kind="datetime", text="14:00", at_ms=end_ms),
            output="keep",
        ),
    )
    begun = next(stage for stage in plan.stages if isinstance(stage, BeginGeneration))
    assert begun.start.sources["numbers"] == start
    assert begun.until is not None and begun.until.sources["numbers"] == end


@pytest.mark.parametrize("world", ["stateless"], indirect=True)
def test_a_bounded_replay_stops_where_it_was_told_to(world: World) -> None:
    world.stop()
    until = Target(kind="offset", text="80", number=80)
    with pytest.raises(Refused, match="leave out --until"):
        plan_reset(world.context, world.name, Request(target=EARLIEST, until=until))
    world.reset(MIDDLE, output="keep", until=until)
    before = world.result()
    world.start()
    world.until("it has not stopped", lambda: world.release.wanted == "stopped" and world.release.lease_ended)
    again = world.expected({0: 60, 1: 60}, {0: 80, 1: 80})
    assert world.result() == before + again
    last = world.context.progress(world.name)
    assert last is not None and last.boundary.position.sources["numbers"] == {0: 80, 1: 80}
    # it runs on from there once it is started
    world.start()
    world.settle()
    assert world.result() == before + world.expected({0: 60, 1: 60})


@pytest.mark.parametrize("world", ["stateless"], indirect=True)
def test_only_the_partitions_that_are_named_move(world: World) -> None:
    before = world.result()
    world.stop()
    world.reset(EARLIEST, inputs={world.topic: (1,)}, output="keep")
    world.start()
    world.produce(20)
    world.settle()
    again = world.expected({0: 100, 1: 0}) - world.expected({0: 100, 1: 100})
    assert again.total() == 50
    assert world.result() == before + again + world.expected({0: 100, 1: 100})


@pytest.mark.long
@pytest.mark.parametrize("world", ["stateful"], indirect=True)
def test_state_variables_outlive_their_driver(world: World) -> None:
    # each driver renames the checkpoint, and Spark writes down where it found its schemas
    for _ in range(3):
        world.stop()
        world.start()
        world.produce(20)
        world.settle()
    assert world.result() == world.expected({})
    # a generation that inherited its state doesn't need the checkpoint that the state came from
    world.stop()
    read = ends(world.settings, world.topic)
    world.produce(20)
    left_out = ends(world.settings, world.topic)
    world.reset(Target(kind="latest", text="--to-latest"), state="keep", output="keep")
    forget(world.settings, world.name, 1)
    world.start()
    world.produce(20)
    world.settle()
    assert world.release.generation == 2
    assert world.result() == world.recompute(
        [r for r in world.records() if not read[r.partition] <= r.offset < left_out[r.partition]]
    )


@pytest.mark.long
@pytest.mark.parametrize("world", ["joined"], indirect=True)
def test_a_pair_whose_later_half_is_news_is_news(world: World) -> None:
    """A pair names its older half, which was processed before. So the batch decides whether it is a replay."""
    before = world.expected({})
    world.stop()
    world.produce(20)
    with following(world) as follower:
        follower.comes_to(before)
        seen = len(follower.got)
        world.reset(EARLIEST, output="keep")
        world.start()
        world.settle()
        follower.comes_to(before + world.expected({}))
        replays = Counter(got.source for got in follower.got[seen:] if got.replay)
    assert replays == before


@pytest.mark.parametrize("world", ["count"], indirect=True)
def test_a_result_is_not_deleted_before_its_consumers_have_passed_it(world: World) -> None:
    with following(world) as follower:
        follower.comes_to(world.expected({}))
    # the consumer still exists, but reads nothing
    old = world.release.result_topics[""]
    plan = plan_reset(world.context, world.name, Request(target=EARLIEST, output="truncate", stop=True, timeout_s=2.0))
    with pytest.raises(SwitchyardError, match="have not passed switch 2"):
        world.run(plan)
    assert old in topic_names(world.settings)
    with following(world) as follower:
        follower.comes_to(world.expected({}))
        follower.passes_the_newest_switch()
        world.run(plan)
    assert old not in topic_names(world.settings)
