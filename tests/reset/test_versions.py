"""Other versions beside a release that was reset."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.planning.run import plan_stop
from orchestration.operations.procedures.diff import diff
from orchestration.operations.procedures.wait import wait_ready
from pipelines.errors import Refused
from pipelines.model.reset import Target
from tests.reset.undoing import EARLIEST, LATEST, MIDDLE, beside, undo
from tests.reset.world import Following, World

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.mark.long
def test_versions_are_compared_and_switched_as_before_when_one_was_reset(world: World, follower: Following) -> None:
    context, second = world.context, beside(world)
    reset = world.reset(EARLIEST, stop=True)
    # both the live one, in its second generation, and a candidate that was reset itself
    world.run(plan_reset(context, second, Request(target=EARLIEST, stop=True)))
    with pytest.raises(Refused, match="hasn't caught up"):
        plan_promote(context, second)
    world.produce(20)
    wait_ready(context, second, for_s=0.1, timeout_s=120)
    found = diff(context, second)
    assert (found.changed, found.only_live, found.only_new) == (0, 0, 0) and found.identical == 7
    world.run(plan_promote(context, second))
    world.produce(20)
    follower.comes_to(world.expected({}))
    world.run(plan_rollback(context, world.app))
    world.produce(20)
    world.settle()
    follower.comes_to(world.expected({}))
    assert [s.new for s in context.registry.state().chains[world.app]] == [world.name, world.name, second, world.name]
    # live again, its reset can be undone like any other
    undo(world, reset)
    world.produce(20)
    world.settle()
    follower.comes_to(world.expected({}))


@pytest.mark.long
def test_from_one_that_was_reset_and_died_consumers_go_back_exactly(world: World, follower: Following) -> None:
    context, second = world.context, beside(world)
    diff(context, second)
    world.run(plan_promote(context, second))
    # its result now belongs to another generation, counts less, and was never compared
    world.run(plan_reset(context, second, Request(target=MIDDLE, stop=True)))
    wait_ready(context, second, for_s=0.1, timeout_s=120)
    follower.comes_to(world.expected({0: 60, 1: 60}))
    with pytest.raises(Refused, match="were never compared in their current generations") as error:
        plan_rollback(context, world.app)
    assert f"`switchyard diff {second}`" in error.value.fix
    world.run(plan_stop(context, second))
    world.produce(20)
    world.settle()
    plan = world.run(plan_rollback(context, world.app))
    assert "both results are compared as a whole first" in plan.warnings[-1]
    world.produce(20)
    world.settle()
    follower.comes_to(world.expected({}))


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "output"), [(LATEST, "new"), (EARLIEST, "truncate")], ids=["ahead", "its old result deleted"]
)
def test_from_one_that_never_ran_since_its_reset_consumers_go_back_exactly(
    world: World, follower: Following, target: Target, output: Any
) -> None:
    context, second = world.context, beside(world)
    diff(context, second)
    world.run(plan_promote(context, second))
    world.produce(20)
    follower.comes_to(world.expected({}))
    # nobody reads the one that they have left
    left = plan_reset(context, world.name, Request(target=EARLIEST, stop=True))
    assert left.facts["followers"] == "none" and "alias" not in left.facts
    world.run(plan_stop(context, second))
    world.run(plan_reset(context, second, Request(target=target, output=output, stay_stopped=True)))
    # its newest progress record belongs to a generation that nobody reads any more
    world.run(plan_rollback(context, world.app))
    world.produce(20)
    world.settle()
    follower.comes_to(world.expected({}))
