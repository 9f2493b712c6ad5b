"""Dagster's jobs do the same to a real release as the commands, and show it in their runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestration.defs.names import APP_TAG, RELEASE_TAG
from orchestration.defs.resets import bisect_job, reset_job, undo_job
from pipelines.model.text import markdown
from pipelines.settings import Settings
from tests.defs.jobs import DEPRECATED, dagster
from tests.reset.world import POISON, following, live_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, DEPRECATED, pytest.mark.long]


def test_a_release_is_reset_and_taken_back(broker: Settings, spark: SparkSession, tmp_path: Path) -> None:
    with live_world(broker, spark, "count", tmp_path) as world, following(world) as follower, dagster(world) as jobs:
        expected = world.expected({})
        follower.comes_to(expected)
        asked: dict[str, Any] = {
            "release": world.name,
            "position": {"to_earliest": {}},
            "stop": True,
            "reason": "a trial",
        }
        shown = jobs.run(reset_job, **asked)
        assert shown["executed"] is False and "Nothing is changed" in shown["plan"]
        assert f"| {markdown(f'{world.topic}[0]')} |" in shown["plan"] and world.release.generation == 1
        done = jobs.run(reset_job, **asked, execute=True)
        assert done["executed"] is True and done[RELEASE_TAG] == world.name and done[APP_TAG] == world.app
        assert world.release.generation == 2 and world.context.registry.state().operations[done["operation"]].closed
        world.settle()
        assert world.result() == expected
        again = jobs.run(undo_job, reset="reset-of-nobody", execute=True)
        assert again["exit_code"] == 2 and "reset-of-nobody" in again["error"]
        jobs.run(undo_job, reset=done["operation"], stop=True, execute=True)
        assert world.release.result_topics[""].endswith(".g1")
        world.produce(20)
        world.settle()
        assert world.result() == world.expected({})
        follower.comes_to(world.expected({}))


def test_a_record_that_kills_a_batch_is_found_and_skipped(
    broker: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    with live_world(broker, spark, "poisoned", tmp_path) as world, dagster(world) as jobs:
        assert "is run by process" in jobs.run(bisect_job, release=world.name)["error"]
        world.produce(60)
        world.until("it has not failed", lambda: world.release.state == "failed" and world.release.lease_ended)
        found = jobs.run(bisect_job, release=world.name)
        assert "a number that nobody can take" in found["cause"] and str(POISON) in found["value"]
        assert found[RELEASE_TAG] == world.name
        jobs.run(reset_job, release=world.name, position={"skip": {"record": found["skip"]}}, execute=True)
        world.settle()
        left_out = [r for r in world.records() if f"{world.topic}:{r.partition}:{r.offset}" == found["skip"]]
        assert world.result() == world.recompute([r for r in world.records() if r not in left_out])
        world.stop()
        world.produce(20)
        assert jobs.run(bisect_job, release=world.name)["record"] == "none: the next batch runs"
