"""How soon a driver that starts is known to run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.settings import Settings
from tests.reset.world import world_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_whoever_starts_a_driver_need_not_wait_for_its_next_heartbeat(
    broker: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    # whoever waited for the next one would give up before it came
    rare = broker.model_copy(update={"heartbeat_s": 1_000.0, "lease_timeout_s": 5_000.0})
    assert rare.boot_timeout_s < rare.heartbeat_s
    with world_of(rare, spark, "count", tmp_path) as world:
        world.start()
