"""Drivers beside a newer version: one that can't read what it must understand is held, and runs on once it is repaired."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from orchestration.operations.execute import execute
from orchestration.operations.planning.repair import plan_repair
from orchestration.operations.planning.run import plan_stop
from orchestration.operations.supervising.overview import statuses
from pipelines.errors import Refused
from pipelines.kafka.client import producer
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.log import FencedWriter
from pipelines.kafka.progress import newest_progress
from pipelines.model.entries import Entry, Promoted, Staged, encode
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC
from pipelines.model.progress import Heartbeat
from pipelines.settings import Settings
from tests.operations.builders import switch
from tests.reset.world import World, following, live_world

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
def world(broker: Settings, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A live app whose driver runs. Each test leaves the registry repaired."""
    with live_world(broker, spark, "count", tmp_path_factory.mktemp("held")) as made:
        yield made


def write(world: World, *entries: bytes) -> None:
    """Appends these entries to the registry, as a process of another version does."""
    FencedWriter(world.settings, REGISTRY_TOPIC, REGISTRY_TOPIC).append(lambda: list(entries))


def said(world: World, state: str, lag: int) -> Heartbeat | None:
    """The driver's last heartbeat, if it says this."""
    beat = latest_heartbeats(world.settings).get(world.name)
    return beat if beat is not None and (beat.state, beat.lag_records) == (state, lag) else None


def is_held(world: World) -> str:
    """Waits until the driver holds. Gives it 20 records that it does not read, and returns why."""
    world.until("the driver does not hold", lambda: said(world, "held", 0))
    before = newest_progress(world.settings, world.name)
    world.produce(20)
    world.until("it does not know of its input", lambda: said(world, "held", 20))
    assert newest_progress(world.settings, world.name) == before
    beat = said(world, "held", 20)
    assert beat is not None and beat.error is not None
    return beat.error


def goes_on(world: World) -> None:
    world.settle()
    world.until("it does not say that it runs", lambda: said(world, "running", 0))
    assert world.result() == world.expected({})


def test_an_unreadable_entry_holds_a_driver_until_the_registry_is_repaired(world: World) -> None:
    newer = {"kind": "moved", "release": world.name, "actor": "ann", "must_understand": True}
    write(world, b"garbage", json.dumps(newer).encode())
    error = is_held(world)
    assert "can't read entry" in error and "by ann" in error
    [status] = [s for s in statuses(world.context) if s.release.name == world.name]
    assert status.health == "held" and any("upgrade" in note for note in status.notes)
    with pytest.raises(Refused, match=f"{world.name} is held"):
        plan_stop(world.context, world.name)
    execute(world.context, plan_repair(world.context))
    goes_on(world)


def as_newer(entry: Entry, *, must: bool, **fields: Any) -> bytes:
    """An entry as the next schema of its kind might be. `fields`: also those of its spec or switch."""
    written = json.loads(encode(entry))
    inner = written.get("spec") or written["switch"]
    inner |= fields
    return json.dumps(
        {**written, "schema_version": 2, "actor": "a newer one", **({"must_understand": True} if must else {})}
    ).encode()


def test_a_driver_runs_beside_a_newer_version_until_that_one_moves_its_consumers(world: World) -> None:
    """A newer process stages `v2`, which concerns nobody else, runs it, and promotes it: that decides who is live."""
    first, second = world.release.spec, f"{world.app}.v2"
    spec = first.model_copy(update={"release": second, "version": 2})
    with following(world) as follower:
        follower.comes_to(world.expected({}))
        # the same field, written in another way
        write(world, as_newer(Staged(spec=spec), must=False, partitions={"result": 2}))
        speaks = producer(world.settings)
        beat = {"release": second, "state": "running", "schema_version": 2, "threads": {"sink": 1}}
        speaks.produce(HEARTBEATS_TOPIC, json.dumps(beat), second)
        assert speaks.flush(30) == 0
        world.until("it is not there", lambda: [u.kind for u in world.context.registry.state().unread] == ["staged"])
        world.produce(20)
        goes_on(world)
        follower.comes_to(world.expected({}))
        link = switch(2, world.name, second).model_copy(update={"old_generation": world.release.generation})
        write(world, as_newer(Promoted(alias=world.app, switch=link), must=True, shards=2))
        error = is_held(world)
        assert "(promoted by a newer one)" in error and "schema version 2" in error and "upgrade Switchyard" in error
        told = world.cli("registry", "check")
        assert told.code == 1 and "staged" in told.out and "promoted" in told.out and world.name in told.out
        assert "must not be ignored" in world.cli("status").text
        # neither is it stopped, nor another version staged over what the newer process has decided
        for command in (("stop", world.name), ("stage", world.app, "--same-as", world.name, "--correction", "again")):
            refused = world.cli(*command, "--execute")
            assert refused.code == 3 and "is held" in refused.text, refused.text
        repaired = world.cli("registry", "repair", "--execute")
        assert repaired.code == 0, repaired.text
        goes_on(world)
        follower.comes_to(world.expected({}))
    state = world.context.registry.state()
    assert state.unread == () and second not in state.releases
    assert [each.new for each in state.chains[world.app]] == [world.name]
