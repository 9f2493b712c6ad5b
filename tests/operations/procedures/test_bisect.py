"""A record that parses but makes its batch fail: bisect finds its offset, and a reset skips it alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.operations.looking.inputs import look
from orchestration.operations.planning.reset.export import new_positions
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.run import plan_start
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.plans.positions import one_record
from orchestration.operations.procedures.bisect import at_index, bisect, first_failing, prefix
from orchestration.operations.procedures.wait import wait_ready
from pipelines.errors import BadUsage, Refused
from pipelines.model.positions import SourcePosition
from pipelines.settings import Settings
from tests.reset.world import PARTITIONS, POISON, World, following, live_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _unread(world: World) -> int:
    at = world.context.progress(world.name)
    assert at is not None
    return sum(here.end - here.position for here in look(world.context, world.release, at.boundary.position).values())


@given(total=st.integers(1, 10_000), killer=st.integers(1, 10_000))
def test_halves_find_the_first_that_fails(total: int, killer: int) -> None:
    tried: list[int] = []

    def fails(count: int) -> str | None:
        tried.append(count)
        return f"{count} records" if count >= killer else None

    found = first_failing(total, fails)
    # the error is that of the smallest batch: in a larger one, another record may cause it
    assert found == ((killer, f"{killer} records") if killer <= total else None)
    assert len(tried) <= total.bit_length() + 1


def test_records_are_counted_one_partition_after_the_other() -> None:
    here = SourcePosition(sources={"a": {0: 5, 1: 0}, "b": {0: 7}})
    end = SourcePosition(sources={"a": {0: 7, 1: 2}, "b": {0: 9}})
    assert prefix(here, end, 0) == here and prefix(here, end, 6) == end
    assert prefix(here, end, 3) == SourcePosition(sources={"a": {0: 7, 1: 1}, "b": {0: 7}})
    assert [at_index(here, end, n) for n in range(6)] == [
        ("a", 0, 5), ("a", 0, 6), ("a", 1, 0), ("a", 1, 1), ("b", 0, 7), ("b", 0, 8),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["trades", "trades:0", "trades:x:1", ":0:1", "trades:0:-1"])
def test_a_record_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="--skip"):
        one_record(text)


@pytest.fixture
def world(broker: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    with live_world(broker, spark, "poisoned", tmp_path) as made:
        yield made


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
def test_a_candidate_that_a_record_kills_at_once_becomes_ready_without_it(world: World) -> None:
    """Reads again from the first offset in one batch, the first of its generation."""
    partition, offset = POISON % PARTITIONS, POISON // PARTITIONS
    context, second = world.context, f"{world.app}.v2"
    world.stop()
    world.produce(60)
    world.run(plan_stage(context, world.app, version=2, same_as=world.name, correction="the same again"))
    world.run(plan_start(context, second))
    other = World(settings=world.settings, context=context, drivers=world.drivers, kind=world.kind, app=world.app,
                  topic=world.topic, version=2)  # fmt: skip
    world.until("it has not failed", lambda: other.release.state == "failed" and other.release.lease_ended)
    found = bisect(context, second)
    assert found is not None and (found.partition, found.offset) == (partition, offset)
    world.run(plan_reset(context, second, Request(target=one_record(f"{world.topic}:{partition}:{offset}"))))
    other.settle()
    wait_ready(context, second, for_s=0.1, timeout_s=120)
    expected = world.recompute([r for r in world.records() if (r.partition, r.offset) != (partition, offset)])
    assert other.result() == expected and other.release.state == "ready"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.broker
def test_bisect_finds_the_poison_record_and_only_that_one_is_skipped(world: World) -> None:
    partition, offset = POISON % PARTITIONS, POISON // PARTITIONS
    with following(world) as follower:
        follower.comes_to(world.expected({}))
        with pytest.raises(Refused, match="is run by process"):
            bisect(world.context, world.name)
        world.produce(60)
        world.until("it has not failed", lambda: world.release.state == "failed" and world.release.lease_ended)
        found = bisect(world.context, world.name)
        assert found is not None
        assert (found.topic, found.partition, found.offset) == (world.topic, partition, offset)
        assert "a number that nobody can take: 237" in found.cause
        assert found.key == f"k{POISON % 7}" and str(POISON) in found.value
        # the earlier records are not lost with it
        request = Request(target=one_record(f"{world.topic}:{partition}:{offset}"))
        plan = plan_reset(world.context, world.name, request)
        # nothing else moves: all records but this one are read
        left = sum(int(row[4].replace(",", "")) for row in plan.tables[0].rows)
        assert plan.figures["replay_records"] == left == _unread(world) - 1
        assert all(row[1] == row[2] and row[3] == "+0" for row in plan.tables[0].rows)
        assert [row[0] for row in plan.tables[0].rows][partition] == f"{world.topic}[{partition}] (skips {offset:,})"
        assert plan.figures["left_out"] == f"{world.topic}:{partition}:{offset}"
        # a file of positions would also leave out all earlier records
        with pytest.raises(Refused, match="a file of positions can't hold a skipped record"):
            new_positions(world.context, plan)
        world.run(plan)
        world.produce(20)
        world.settle()
        expected = world.recompute([r for r in world.records() if (r.partition, r.offset) != (partition, offset)])
        assert world.result() == expected
        follower.comes_to(expected)
        world.stop()
        with pytest.raises(Refused, match="has read all of its input"):
            bisect(world.context, world.name)
        with pytest.raises(Refused, match="was already read"):
            plan_reset(world.context, world.name, request)
