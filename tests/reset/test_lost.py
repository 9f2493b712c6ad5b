"""Input that retention has deleted: every step names it, and moves nobody unless that is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from orchestration.operations import release as rel
from orchestration.operations import reset as rs
from orchestration.operations import switch as sw
from orchestration.operations.history import MissingHistory
from orchestration.operations.reprocess import diff, reprocess
from pipelines.kafka.client import admin
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.topics import topic_names
from pipelines.model.registry import WantedSet
from pipelines.model.reset import Target
from pipelines.settings import Settings
from tests.reset.world import PARTITIONS, World, live_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]

EARLIEST = Target(kind="earliest", text="--to-earliest")
# what is lost is named within this, and what the cores take
NAMED_S = 60


@pytest.fixture
def world(broker: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    with live_world(broker, spark, "count", tmp_path) as made:
        yield made


def cut(world: World, upto: int) -> None:
    """Has the input's partitions begin at `upto`, as retention does."""
    # kept until it has answered
    client = admin(world.settings)
    gone = [TopicPartition(world.topic, p, upto) for p in range(PARTITIONS)]
    for future in client.delete_records(gone).values():
        future.result(30)


def named(world: World, name: str, *words: str) -> str:
    """Waits until the release has failed by what `words` name; returns all that the registry says."""

    def failed() -> bool:
        release = world.context.registry.state().releases[name]
        return release.state == "failed" and not world.drivers.alive(name)

    world.until(f"{name} has not failed", failed, timeout_s=NAMED_S)
    failure = world.context.registry.state().releases[name].failure or ""
    assert all(word in failure for word in words), failure
    beat = latest_heartbeats(world.settings)[name]
    assert beat.state == "failed" and words[0] in (beat.error or "")
    return failure


def test_history_that_retention_has_cut_moves_nobody_unless_it_is_accepted(world: World) -> None:
    context, second = world.context, f"{world.app}.v2"
    cut(world, 30)
    missing = rf"{second} can't have all the input that {world.name} has read: deleted by retention: {world.topic}\[0\] 0 to 29"
    again = {"version": 2, "same_as": world.name, "correction": "scheduled"}
    # as the schedule does it: at its first step
    with pytest.raises(MissingHistory, match=missing):
        reprocess(context, world.app, **again, auto_promote=True)  # type: ignore[arg-type]
    assert second not in context.registry.state().releases and f"{second}.g1" not in topic_names(world.settings)
    said = world.cli("stage", world.app, "--same-as", world.name, "--correction", "late data", "--execute")
    assert said.code == 3 and "(60 offsets)" in said.text and "--missing-history accept" in said.text
    said = world.cli("stage", world.app, "--same-as", world.name, "--correction", "late", "--missing-history", "accept", "--execute")  # fmt: skip
    assert said.code == 0, said.text
    # what is accepted need not be said again; what goes missing after that, must
    world.run(rel.plan_start(context, second))
    rel.wait_ready(context, second, for_s=0.1, timeout_s=120)
    found = diff(context, second)
    assert found.changed == 7
    plan = sw.plan_promote(context, second)
    assert "accepted before" in plan.facts["missing history"]
    world.run(rel.plan_stop(context, second))
    world.produce(40)
    world.settle()
    cut(world, 110)
    unread = rf"{world.topic}\[0\] 100 to 109"
    for step in (
        lambda: rel.wait_ready(context, second),
        lambda: sw.plan_diff(context, second),
        lambda: sw.plan_promote(context, second),
    ):
        with pytest.raises(MissingHistory, match=unread):
            step()
    # it would begin anew, after all that is gone
    with pytest.raises(MissingHistory, match=rf"{world.topic}\[0\] 30 to 109"):
        rel.plan_start(context, second)
    # a driver that runs meanwhile stops with the same words
    context.registry.step(lambda _: [WantedSet(release=second, wanted="running")])
    world.drivers.launch(second)
    named(world, second, "deleted by retention", f"{world.topic}[0] 100 to 109", "--missing-history accept")
    world.run(rel.plan_start(context, second, accept_missing=True))
    rel.wait_ready(context, second, for_s=0.1, timeout_s=120)
    assert context.registry.state().releases[second].generation == 2
    # nor does the live one read less of it without a word
    with pytest.raises(MissingHistory, match=rf"{world.topic}\[0\] 0 to 109"):
        rs.plan_reset(context, world.name, rs.Request(target=EARLIEST, stop=True))
    assert rs.plan_reset(context, world.name, rs.Request(target=EARLIEST, stop=True, accept_missing=True)).stages
