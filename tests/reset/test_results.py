"""Resets of an app with a table and a stream: both begin again, and the consumers of both move together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from demo.ledger.reader import read
from orchestration.operations.planning.clean import plan_clean
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.undo import plan_undo
from pipelines.errors import Refused
from pipelines.kafka.topics import topic_names
from pipelines.model.reset import Target
from pipelines.settings import Settings
from tests.reset.world import Following, World, folded, following, live_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

EARLIEST = Target(kind="earliest", text="--to-earliest")


@pytest.fixture(scope="module")
def world(broker: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("both")
    with live_world(broker, spark, "both", folder, max_records_per_batch=150) as made:
        yield made


@pytest.fixture(scope="module")
def table(world: World) -> Iterator[Following]:
    with following(world, "last") as made:
        yield made


@pytest.fixture(scope="module")
def stream(world: World) -> Iterator[Following]:
    with following(world, "evens") as made:
        yield made


def rows(world: World) -> dict[str, Any]:
    """Key -> row, as the table must be."""
    last: dict[str, Any] = {}
    for record in world.records():
        key = {"k": (record.key or b"").decode(), "p": record.partition}
        last[json.dumps(key, separators=(",", ":"))] = json.loads(record.value or b"")
    return last


def evens(world: World) -> Counter[str]:
    """Source -> 1, of each number that the stream takes."""
    records = (r for r in world.records() if json.loads(r.value or b"")["n"] % 4 < 2)
    return Counter(f"{r.topic}:{r.partition}:{r.offset}" for r in records)


def topics(world: World, generation: int) -> set[str]:
    return {f"{world.name}.g{generation}.{result}" for result in ("last", "evens")}


def is_right(world: World, table: Following, stream: Following) -> None:
    """Both topics hold what they must, and each consumer has it once."""
    for result, expected in (("last", rows(world)), ("evens", evens(world))):
        topic = world.release.result_topics[result]
        assert folded(world.kind_of(result), list(read(world.settings.bootstrap, topic))) == expected
    stream.comes_to(evens(world))
    table.comes_to(rows(world))


def test_both_results_are_reset_and_their_consumers_move_together(
    world: World, table: Following, stream: Following
) -> None:
    is_right(world, table, stream)
    plan = world.reset(EARLIEST, stop=True)
    assert world.release.generation == 2
    world.produce(20)
    world.settle()
    is_right(world, table, stream)
    chain = world.context.registry.state().chains[world.app]
    assert set(chain[-1].new_start.topics) == topics(world, 2)
    # and back
    world.run(plan_undo(world.context, plan.id, stop=True))
    world.produce(20)
    world.settle()
    is_right(world, table, stream)
    assert set(world.release.result_topics.values()) == topics(world, 1)


def test_tombstones_can_not_take_back_what_one_of_them_has_written(world: World) -> None:
    with pytest.raises(Refused, match="a tombstone can't take back a stream's records"):
        plan_reset(world.context, world.name, Request(target=EARLIEST, output="tombstone", stop=True))


def test_both_are_deleted_together(world: World, table: Following, stream: Following) -> None:
    archived = set(world.release.result_topics.values())
    world.reset(EARLIEST, stop=True)
    world.settle()
    is_right(world, table, stream)
    for consumer in (table, stream):
        consumer.passes_the_newest_switch()
    assert archived <= topic_names(world.settings)
    world.run(plan_clean(world.context, world.name, after_s=0.0))
    assert not archived & topic_names(world.settings)
    before = set(world.release.result_topics.values())
    world.reset(EARLIEST, output="truncate", stop=True)
    world.settle()
    assert not before & topic_names(world.settings)
    table.comes_to(rows(world))
    # consumers move at once, so those of the stream see the replay, which is marked
    stream.comes_to(evens(world) + evens(world))
    assert Counter(got.source for got in stream.got if not got.replay) == evens(world)
