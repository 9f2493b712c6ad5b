"""A live release of its own for a test, and its consumer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.settings import Settings
from tests.reset.world import Following, World, following, live_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def world(request: pytest.FixtureRequest, broker: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    """A live release, of the app `count` unless a test names another one."""
    with live_world(broker, spark, getattr(request, "param", "count"), tmp_path, max_records_per_batch=120) as made:
        yield made


@pytest.fixture
def follower(world: World) -> Iterator[Following]:
    with following(world) as found:
        found.comes_to(world.expected({}))
        yield found
