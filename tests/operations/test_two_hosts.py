"""Two hosts with one registry: neither can look at the other's processes, and their clocks differ by a minute."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from pipelines.engine.heart import Heart
from pipelines.engine.lease import take_lease
from pipelines.kafka.registry import Registry
from pipelines.model.entries import GenerationStarted, Opened, Staged
from pipelines.model.progress import Heartbeat
from pipelines.settings import Settings
from tests.operations.builders import POSITION, spec
from tests.shared.another_host import AnotherHost
from tests.shared.waiting import until

pytestmark = pytest.mark.broker

LEASE_S = 3.0


class World:
    """A release and an operation on it. This host runs the release: it has its lease and sends its heartbeats."""

    def __init__(self, broker: Settings) -> None:
        self.settings = broker.model_copy(update={"lease_timeout_s": LEASE_S, "heartbeat_s": 0.2})
        self.release = f"sums-{uuid.uuid4().hex[:8]}.v1"
        self.operation = f"reset-{self.release}"
        self.registry = Registry(self.settings)
        plan = Plan(id=self.operation, operation=Kind.RESET, releases=(self.release,), stages=())
        self.registry.step(lambda _: [
            Staged(spec=spec(self.release)), GenerationStarted(release=self.release, generation=1, start=POSITION),
            Opened(id=plan.id, name=plan.operation, releases=plan.releases, deadline_ms=self.registry.now_ms() + 50_000,
                   plan=plan.for_journal()),
        ])  # fmt: skip
        self.token = take_lease(self.registry, self.release).token

    def heart(self) -> Heart:
        beat = Heartbeat(
            release=self.release, generation=1, token=self.token, host="h", pid=1, at_ms=1, state="running"
        )
        return Heart(self.settings, lambda: beat)

    def ended(self) -> bool:
        return self.registry.state().operations[self.operation].closed is not None


@pytest.fixture
def world(broker: Settings) -> Iterator[World]:
    made = World(broker)
    yield made
    made.registry.close()


@pytest.fixture
def hosts(world: World) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("ahead_s", [60.0, -60.0])
def test_a_host_whose_clock_is_wrong_takes_over_only_what_is_dead(
    world: World, hosts: ExitStack, ahead_s: float
) -> None:
    there = hosts.enter_context(AnotherHost(world.settings, ahead_s))
    heart = world.heart()
    try:
        own_ms, broker_ms = there.asked("clock", "-")
        assert 55 < (own_ms - broker_ms) / ahead_s / 1000 * 60 < 65
        until(
            "the driver is not heard",
            lambda: "last heartbeat" in (there.asked("holder", world.release) or ""),
            timeout_s=30,
        )
        began = time.monotonic()
        while time.monotonic() - began < 2 * LEASE_S:
            assert str(there.asked("take", world.release)).startswith(f"refused: {world.release} is run by process")
        # nor does it end an operation before its time
        there.asked("expire", "-")
        assert not world.ended()
    finally:
        heart.close()
    # the driver is dead, which that host can't see: it waits for silence
    silent = time.monotonic()
    until("a dead driver holds its release", lambda: there.asked("holder", world.release) is None, timeout_s=30)
    assert time.monotonic() - silent > LEASE_S - 1
    assert there.asked("take", world.release) == world.token + 1


def test_one_of_two_hosts_resumes_until_it_is_dead(world: World, hosts: ExitStack) -> None:
    ahead, behind = (hosts.enter_context(AnotherHost(world.settings, ahead_s)) for ahead_s in (60.0, -60.0))
    assert ahead.asked("resume", world.operation) is None
    began = time.monotonic()
    while time.monotonic() - began < 2 * LEASE_S:
        refused = behind.asked("resume", world.operation)
        # both are process 1 on a host of the same name and the same boot
        assert refused.startswith("refused: process 1 on ") and refused.endswith(f"is carrying out {world.operation}")
    ahead.kill()
    dead = time.monotonic()
    until("a dead operator holds its operation", lambda: behind.asked("resume", world.operation) is None, timeout_s=30)
    # it has listened for 5 s, too
    assert time.monotonic() - dead > LEASE_S + 4
    assert not world.ended()
