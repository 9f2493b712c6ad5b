"""What the tests of resets that are undone, interrupted or beside other versions do with a live release."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.undo import plan_undo
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import Stage, StageId
from orchestration.operations.plans.stages.releases import Want
from orchestration.operations.procedures.wait import wait_ready
from pipelines.errors import Refused
from pipelines.model.reset import Target
from tests.reset.world import World
from tests.shared.operators import SEED, Death

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


def killed_before(world: World, stage: type[Stage] | StageId, *command: str) -> Plan:
    """A command whose operator is killed before a stage of its plan."""
    plan = world.killed(*command, "--execute", death=Death(stage=stage))
    assert plan is not None, "it was over before"
    return plan


EACH_STAGE = 0
# fewer kills would say little of what operators leave to the next one
LEAST_KILLS = 3


def finished_by_the_same_command(world: World, *command: str, kills: int, story: str) -> None:
    """A command whose operators are killed anywhere, one after the other, except the last.

    `kills`: EACH_STAGE: the first operator is killed before the first stage, the next one before the second, and so on.
    In each `story` they are killed at other lines.
    """
    if kills == EACH_STAGE:
        killed_before_each_stage(world, *command)
        return
    first, killed = None, 0
    for line in Random(f"{SEED} {story}").choices(range(1, 1200), k=kills):
        plan = world.killed(*command, "--execute", death=Death(line=line))
        if plan is None:
            break
        assert first in (None, plan.id), "the same command is the same operation"
        first, killed = plan.id, killed + 1
        nobody_else_may(world)
    else:
        said = world.cli(*command, "--execute")
        assert said.code == 0, said.text
    # an operator that ends before its line is the last one
    assert killed >= LEAST_KILLS, f"only {killed} operators were killed"


def killed_before_each_stage(world: World, *command: str) -> None:
    """A command whose operator is killed before its first stage, the next one before the second, and so on."""
    plan = killed_before(world, Want, *command)
    first, *others = plan.stage_ids
    assert first == StageId(kind="Want", subject=world.name)
    for stage in others:
        assert killed_before(world, stage, *command).id == plan.id, "the same command is the same operation"
        nobody_else_may(world)
    said = world.cli(*command, "--execute")
    assert said.code == 0, said.text


def nobody_else_may(world: World) -> None:
    """While an operation is under way, any other request is refused."""
    with pytest.raises(Refused, match="is under way on"):
        plan_reset(world.context, world.name, Request(target=MIDDLE, stop=True))
    with pytest.raises(Refused, match="is under way on"):
        plan_stop(world.context, world.name)
