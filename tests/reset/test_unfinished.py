"""A batch that is committed in Kafka but not in Spark's log, as after a kill between the two commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration.operations.procedures.bisect import bisect
from pipelines.engine.checkpoint import newest_folder
from pipelines.errors import Refused
from pipelines.model.reset import Target
from pipelines.settings import Settings
from tests.reset.world import World, ends, following, live_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]

LATEST = Target(kind="latest", text="--to-latest")


@pytest.fixture
def world(broker: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """A live release of `count` that is stopped; Spark's log lacks its last batch."""
    with live_world(broker, spark, "count", tmp_path) as made:
        made.produce(20)
        made.settle()
        made.stop()
        folder = newest_folder(made.settings, made.name, made.release.generation)
        assert folder is not None
        newest = max((f for f in (folder / "commits").iterdir() if f.name.isdigit()), key=lambda f: int(f.name))
        newest.unlink()
        (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
        yield made


def test_it_is_finished_before_a_kept_state_moves(world: World) -> None:
    with following(world) as follower:
        follower.comes_to(world.expected({}))
        before = ends(world.settings, world.topic)
        world.produce(20)
        after = ends(world.settings, world.topic)
        world.reset(LATEST, state="keep")
        world.start()
        world.produce(20)
        world.settle()
        expected = world.recompute(
            [r for r in world.records() if not before[r.partition] <= r.offset < after[r.partition]]
        )
        assert world.result() == expected
        follower.comes_to(expected)


def test_bisect_asks_to_have_it_finished(world: World) -> None:
    with pytest.raises(Refused, match="has committed a batch to Kafka that is missing in Spark's log") as refused:
        bisect(world.context, world.name)
    assert f"switchyard start {world.name} --execute" in refused.value.fix
