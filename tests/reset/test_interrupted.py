"""Resets whose operator is killed, and resets that are abandoned, with a consumer attached."""

from __future__ import annotations

import json
import shutil

import pytest

from orchestration.operations import journal
from orchestration.operations.execute import abandon
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.undo import plan_undo
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import BeginGeneration, GiveBack, WriteClearing
from orchestration.operations.plans.stages.releases import DeleteTopic, Launch
from orchestration.operations.supervising.overview import statuses
from pipelines.engine.checkpoint import release_folder
from pipelines.errors import Refused
from pipelines.kafka.topics import topic_names
from tests.reset.undoing import (
    EACH_STAGE,
    EARLIEST,
    LATEST,
    MIDDLE,
    finished_by_the_same_command,
    killed_before,
    undo,
)
from tests.reset.world import Following, World

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.mark.long
@pytest.mark.parametrize("kills", [12, pytest.param(EACH_STAGE, id="before each stage")])
def test_the_same_command_finishes_an_undo_killed_anywhere(world: World, follower: Following, kills: int) -> None:
    done = world.reset(MIDDLE, stop=True)
    finished_by_the_same_command(world, "undo", done.id, "--stop", kills=kills, story="undo")
    world.produce(4)
    world.settle()
    assert world.release.generation == 1
    assert world.result() == world.expected({})
    follower.comes_to(world.expected({}))
    assert len(world.context.registry.state().chains[world.app]) == 3


@pytest.mark.long
def test_one_that_was_abandoned_is_as_it_was_or_undone(world: World, follower: Following) -> None:
    command = ("reset", world.name, "--to-earliest", "--stop")
    # before its generation has started, the only change is that the release is stopped
    plan = killed_before(world, BeginGeneration, *command)
    begins = next(n for n, s in enumerate(plan.stages) if isinstance(s, BeginGeneration))
    journal.abandon(world.context, plan.id)
    assert world.release.generation == 1
    with pytest.raises(Refused, match="changed nothing"):
        plan_undo(world.context, plan.id)
    world.start()
    world.produce(4)
    world.settle()
    follower.comes_to(world.expected({}))
    # after that, its undo goes back
    plan = killed_before(world, plan.stage_ids[begins + 1], *command)
    journal.abandon(world.context, plan.id)
    assert world.release.generation == 2
    world.produce(4)
    # consumers are at the end of the old result: nothing else may start before they are led on or back
    with pytest.raises(Refused, match="has not moved the consumers") as caught:
        plan_reset(world.context, world.name, Request(target=MIDDLE, stop=True))
    assert f"switchyard undo {plan.id}" in caught.value.fix
    [status] = [s for s in statuses(world.context) if s.release.name == world.name]
    assert any(f"{plan.id} has not moved the consumers" in note for note in status.notes)
    undo(world, plan)
    world.start()
    world.settle()
    assert world.release.generation == 1
    follower.comes_to(world.expected({}))
    assert len(world.context.registry.state().chains[world.app]) == 1


@pytest.mark.long
def test_an_abandoned_reset_under_the_state_goes_on_where_it_was_to_go(world: World, follower: Following) -> None:
    world.stop()
    left_out = range(len(world.sent), len(world.sent) + 4)
    world.produce(4)
    last = plan_reset(world.context, world.name, Request(target=LATEST, state="keep")).stage_ids[-1]
    plan = killed_before(world, last, "reset", world.name, "--to-latest", "--state", "keep")
    abandon(world.context, plan.id)
    assert world.release.generation == 2
    world.start()
    world.produce(4)
    world.settle()
    expected = world.recompute([r for r in world.records() if json.loads(r.value or b"")["n"] not in left_out])
    assert world.result() == expected
    follower.comes_to(expected)
    # it can be undone like a finished one
    undo(world, plan)
    world.start()
    world.settle()
    follower.comes_to(world.expected({}))


@pytest.mark.long
@pytest.mark.parametrize("before", [WriteClearing, Launch, DeleteTopic])
def test_an_abandoned_reset_that_deletes_its_result_has_left_a_whole_one(
    world: World, follower: Following, before: type[Stage]
) -> None:
    request = Request(target=EARLIEST, output="truncate", stop=True)
    plan = plan_reset(world.context, world.name, request)
    kinds = [type(stage) for stage in plan.stages]
    # the replay waits for no consumer
    assert kinds.index(Launch) < kinds.index(WriteClearing)
    plan = killed_before(world, before, "reset", world.name, "--to-earliest", "--output", "truncate", "--stop", "--yes")
    abandon(world.context, plan.id)
    assert world.release.generation == 2
    # the old result is kept until its consumers have moved on
    assert f"{world.name}.g1" in topic_names(world.settings)
    if before is not DeleteTopic:
        [status] = [s for s in statuses(world.context) if s.release.name == world.name]
        assert any(f"{plan.id} has not moved the consumers" in note for note in status.notes)
        again = plan_reset(world.context, world.name, request)
        # what is deleted for good, and what consumers see, also counts the result that they read
        for name in ("result_records", "state_bytes"):
            assert again.figures[name] >= plan.figures[name] > 0
        assert again.facts["alias"] == plan.facts["alias"] and "and see the replay" in again.facts["alias"]
        world.run(again)
        assert f"{world.name}.g1" not in topic_names(world.settings)
    world.start()
    world.produce(4)
    world.settle()
    follower.comes_to(world.expected({}))
    assert world.result() == world.expected({})


@pytest.mark.long
def test_an_abandoned_reset_that_can_not_be_taken_back_is_led_on_by_another(world: World, follower: Following) -> None:
    plan = killed_before(world, GiveBack, "reset", world.name, "--to-earliest", "--stop")
    abandon(world.context, plan.id)
    shutil.rmtree(release_folder(world.settings, world.name))
    with pytest.raises(Refused, match="this is deleted: its state"):
        plan_undo(world.context, plan.id, stop=True)
    with pytest.raises(Refused, match="has not moved the consumers") as error:
        plan_reset(world.context, world.name, Request(target=EARLIEST, stop=True))
    assert "--output truncate" in error.value.fix
    done = world.reset(EARLIEST, output="truncate", stop=True)
    deleted = {stage.name for stage in done.stages if isinstance(stage, DeleteTopic)}
    assert deleted == {world.release.topics_of(1)[""], world.release.topics_of(2)[""]} and not deleted & topic_names(
        world.settings
    )
    world.start()
    world.produce(20)
    world.settle()
    assert world.release.generation == 3 and world.result() == world.expected({})
    follower.comes_to(world.expected({}))
