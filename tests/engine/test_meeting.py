"""A release meets another: its query runs on and is limited, or it is stopped if Spark's sources can't be limited."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from orchestration.operations import journal
from orchestration.operations.planning.run import plan_start
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.plans.stages.switching import FlagBoundary
from orchestration.operations.procedures.diff import diff
from orchestration.operations.procedures.wait import wait_ready
from pipelines.engine.checkpoint import newest_folder
from pipelines.engine.lease import take_lease
from pipelines.engine.query import Query
from pipelines.engine.source_ends import SourceEnds
from pipelines.model.positions import SourcePosition
from pipelines.settings import Settings
from tests.reset.world import World, live_world
from tests.shared.operators import Death

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]

TRIES = 20


@pytest.fixture(scope="module")
def world(broker: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A live release and a second version of the same code beside it. Each test leaves both running."""
    with live_world(broker, spark, "windowed", tmp_path_factory.mktemp("meeting")) as made:
        name = candidate(made)
        made.run(plan_stage(made.context, made.app, version=2, same_as=made.name, correction="the same again"))
        made.run(plan_start(made.context, name))
        yield made


@contextmanager
def input_comes(world: World) -> Iterator[None]:
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.05):
            world.produce(4)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)


def candidate(world: World) -> str:
    return f"{world.app}.v2"


def goes_on(world: World, name: str) -> None:
    """Waits for another batch: a query that has just started is never in a batch when an order comes."""
    last = world.context.progress(name)
    assert last is not None
    stood = last.boundary.position
    world.until("it doesn't go on", lambda: (p := world.context.progress(name)) and p.boundary.position != stood)


@pytest.mark.parametrize("led", [True, pytest.param(False, marks=pytest.mark.long)])
def test_two_releases_meet_at_one_boundary_and_continue(
    world: World, monkeypatch: pytest.MonkeyPatch, led: bool
) -> None:
    context = world.context
    ends: list[SourcePosition] = []
    limit_to = SourceEnds.limit_to

    def limited(sources: SourceEnds, end: SourcePosition) -> None:
        ends.append(end)
        if not led:
            raise LookupError("Spark's sources are others")
        limit_to(sources, end)

    monkeypatch.setattr(SourceEnds, "limit_to", limited)
    name = candidate(world)
    with input_comes(world):
        wait_ready(context, name, unread_records=100, for_s=0.1, timeout_s=120)
        # a release that was not in a batch when the order came stops its query
        for _ in range(TRIES):
            found = diff(context, name)
            assert (found.changed, found.only_live, found.only_new) == (0, 0, 0) and found.identical > 0
            assert found.live_watermark_ms == found.new_watermark_ms
            goes_on(world, name)
            if ends:
                break
        assert ends, "Spark was never led"
    world.settle()
    assert world.result() == world.expected({})


@dataclass
class Resting:
    """A release whose query rests for a diff whose operator has died. `diff`: its id."""

    name: str
    query: Query
    diff: str


@pytest.fixture
def resting(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Resting]:
    context, queries, rest = world.context, list[Query](), Query.rest

    def rested(query: Query) -> None:
        queries.append(query)
        rest(query)

    monkeypatch.setattr(Query, "rest", rested)
    name = candidate(world)
    with input_comes(world):
        wait_ready(context, name, unread_records=100, for_s=0.1, timeout_s=120)
        operation = ""
        # a release that was not in a batch when the order came stops its query
        for _ in range(TRIES):
            plan = world.killed("diff", name, death=Death(stage=FlagBoundary))
            assert plan is not None
            operation = plan.id
            world.until("it doesn't pause", lambda op=operation: paused_for(world, name) == op)
            if queries[-1].sink.turnstile.at_rest:
                break
            journal.abandon(context, operation)
            goes_on(world, name)
        yield Resting(name, queries[-1], operation)


def paused_for(world: World, name: str) -> str | None:
    last = world.context.progress(name)
    return last.paused.op if last is not None and last.paused is not None else None


def test_who_rests_stops_when_told_to_and_goes_on_from_there(world: World, resting: Resting) -> None:
    assert resting.query.sink.turnstile.at_rest
    thread, stop = world.drivers.running(resting.name)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    context = world.context
    release = context.registry.state().releases[resting.name]
    assert release.lease_ended
    last = context.progress(resting.name)
    assert last is not None and paused_for(world, resting.name) == resting.diff
    # Spark's log has the same batches as Kafka
    folder = newest_folder(world.settings, resting.name, release.generation)
    assert folder is not None and (folder / "commits" / str(last.boundary.batch_id)).exists()
    journal.abandon(context, resting.diff)
    world.run(plan_start(context, resting.name))
    found = diff(context, resting.name)
    assert (found.changed, found.only_live, found.only_new) == (0, 0, 0) and found.identical > 0


@pytest.mark.long
def test_who_rests_and_is_superseded_writes_nothing_more(world: World, resting: Resting) -> None:
    assert resting.query.sink.turnstile.at_rest
    context, (thread, _) = world.context, world.drivers.running(resting.name)
    before = context.progress(resting.name)
    take_lease(context.registry, resting.name, force=True)
    thread.join(30)
    assert not thread.is_alive() and context.progress(resting.name) == before
    journal.abandon(context, resting.diff)
    world.run(plan_start(context, resting.name, force=True))
    found = diff(context, resting.name)
    assert (found.changed, found.only_live, found.only_new) == (0, 0, 0) and found.identical > 0
