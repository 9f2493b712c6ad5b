"""A release that meets another: led there while its query runs on, or stopped for it where Spark can't be led."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration.operations import release as rel
from orchestration.operations.reprocess import diff
from pipelines.engine.gate import Gate
from pipelines.model.positions import SourcePosition
from pipelines.settings import Settings
from tests.reset.world import World, live_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.fixture
def world(broker: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    with live_world(broker, spark, "windowed", tmp_path) as made:
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


@pytest.mark.parametrize("led", [True, False])
def test_both_stand_at_one_boundary_and_go_on(world: World, monkeypatch: pytest.MonkeyPatch, led: bool) -> None:
    context, candidate = world.context, f"{world.app}.v2"
    ends: list[SourcePosition] = []
    close = Gate.close

    def closed(gate: Gate, end: SourcePosition) -> None:
        ends.append(end)
        if not led:
            raise LookupError("Spark's sources are others")
        close(gate, end)

    monkeypatch.setattr(Gate, "close", closed)
    world.run(rel.plan_stage(context, world.app, version=2, same_as=world.name, correction="the same again"))
    world.run(rel.plan_start(context, candidate))
    with input_comes(world):
        rel.wait_ready(context, candidate, lag_records=100, for_s=0.1, timeout_s=120)
        # one that wasn't in a batch when it was asked is stopped for it
        for _ in range(5):
            found = diff(context, candidate)
            assert (found.changed, found.only_live, found.only_new) == (0, 0, 0) and found.identical > 0
            assert found.live_watermark_ms == found.new_watermark_ms
            if ends:
                break
        assert ends, "Spark was never led"
        last = world.context.progress(candidate)
        assert last is not None
        behind = last.boundary.position
        world.until("it doesn't go on", lambda: (p := context.progress(candidate)) and p.boundary.position != behind)
    world.settle()
    assert world.result() == world.expected({})
