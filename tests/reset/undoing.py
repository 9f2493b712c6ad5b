"""What the tests of resets that are undone, interrupted or beside other versions do with a live release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestration.operations.planning.reset.undo import plan_undo
from orchestration.operations.planning.run import plan_start
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.plans.plan import Plan
from orchestration.operations.procedures.wait import wait_ready
from pipelines.model.reset import Target
from tests.reset.world import World

if TYPE_CHECKING:
    pass

EARLIEST = Target(kind="earliest", text="--to-earliest")
LATEST = Target(kind="latest", text="--to-latest")
MIDDLE = Target(kind="offset", text="--to-offset 60", number=60)


def switches(world: World) -> int:
    return len(world.context.registry.state().chains[world.app])


def stands_still(world: World) -> bool:
    return world.release.wanted == "stopped" and world.context.holder(world.release) is None


def beside(world: World) -> str:
    """A second version of the same code, ready."""
    name = f"{world.app}.v2"
    world.run(plan_stage(world.context, world.app, version=2, same_as=world.name, correction="the same again"))
    world.run(plan_start(world.context, name))
    wait_ready(world.context, name, for_s=0.1, timeout_s=120)
    return name


def undo(world: World, plan: Plan, **options: Any) -> Plan:
    return world.run(plan_undo(world.context, plan.id, stop=True, **options))
