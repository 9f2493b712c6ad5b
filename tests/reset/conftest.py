"""A live release of its own for a test, and its consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
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


@dataclass
class Lasting:
    """A live release of `count` with its consumer. Tests share it if they leave it whole."""

    world: World
    follower: Following
    # whether no test has failed in it
    sound: bool = True

    @property
    def whole(self) -> bool:
        """Whether both have all of the input, and no operation is under way."""
        if not self.sound:
            return False
        world = self.world
        free = world.context.registry.state().blocking(world.name) is None
        return free and self.follower.is_alive() and world.result() == world.expected({}) == self.follower.fold


@pytest.fixture(scope="module")
def lasting(
    broker: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Lasting]]:
    """A function that returns the shared release: a new one if a test has left something out, or has failed."""
    told: Lasting | None = None
    with ExitStack() as theirs:

        def of_now() -> Lasting:
            nonlocal told
            if told is None or not told.whole:
                theirs.close()
                folder = tmp_path_factory.mktemp("lasting")
                world = theirs.enter_context(live_world(broker, spark, "count", folder, max_records_per_batch=120))
                told = Lasting(world, theirs.enter_context(following(world)))
                told.follower.comes_to(world.expected({}))
            return told

        yield of_now


@pytest.fixture
def lasted(lasting: Callable[[], Lasting], request: pytest.FixtureRequest) -> Iterator[Lasting]:
    """The release as the earlier tests have left it."""
    found, failed = lasting(), request.session.testsfailed
    yield found
    found.sound = request.session.testsfailed == failed


@pytest.fixture
def standing(lasted: Lasting) -> World:
    """A live release of `count` that other tests have used."""
    lasted.world.start()
    return lasted.world


@pytest.fixture
def stopped(standing: World) -> World:
    """The same release, stopped."""
    standing.stop()
    return standing


@pytest.fixture
def along(lasted: Lasting) -> Following:
    """The consumer of the standing release, which has all of its result."""
    return lasted.follower
