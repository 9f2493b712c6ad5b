"""The state that a release starts with and is left with, by what consumers have followed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestration.operations.applying.applier import Applier
from orchestration.operations.lifecycle import left_by_consumers, starting_state, wanting
from orchestration.operations.looking.in_use import refuse_unfinished
from orchestration.operations.planning import run
from orchestration.operations.planning.run import plan_start
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import BeginGeneration
from pipelines.errors import Refused
from pipelines.model.entries import Closed, GenerationStarted, Opened, StateSet, WantedSet
from pipelines.model.registry import RegistryState
from tests.operations.builders import POSITION, Kafka, Log, context_of, generation, release, staged, switch

NAMES = ("a.v1", "a.v2", "a.v3")
FRESH = BeginGeneration(release="a.v2", generation=2, start=POSITION)
DIFF = Opened(id="diff-1", name="diff", releases=("a.v2", "a.v1"), deadline_ms=2**60, actor="ada")


@pytest.mark.parametrize(("name", "state"), [("a.v1", "standby"), ("a.v2", "live"), ("a.v3", "hydrating")])
def test_a_release_that_failed_is_again_what_consumers_know_it_as(name: str, state: str) -> None:
    releases = {each: release(each, state="failed") for each in NAMES}
    known = RegistryState(releases=releases, chains={"a": (switch(1, None, "a.v1"), switch(2, "a.v1", "a.v2"))})
    assert starting_state(known, releases[name]) == state


def test_a_release_that_failed_says_so_when_consumers_have_left_it() -> None:
    assert left_by_consumers(release("a.v2", state="live")) == [StateSet(release="a.v2", state="standby")]
    assert left_by_consumers(release("a.v2", state="failed")) == []


def failed() -> Log:
    return Log(*staged("a.v1", "a.v2"), StateSet(release="a.v2", state="failed", reason="out of memory"))


def begun(log: Log) -> None:
    stages: tuple[Stage, ...] = (FRESH,)
    Applier(context_of(log), Plan(id="start-1", operation=Kind.START, releases=("a.v2",), stages=stages)).apply(FRESH)


def test_a_failed_candidate_is_not_begun_anew_under_an_operation() -> None:
    log = failed()
    log.cluster = Kafka(first={"trades": {0: 0}})
    assert [type(stage).__name__ for stage in plan_start(context_of(log), "a.v2").stages][:2] == [
        "CreateTopic",
        "BeginGeneration",
    ]
    log.entries.append(DIFF)
    with pytest.raises(Refused, match=r"diff-1, which ada started, is under way on a\.v2"):
        plan_start(context_of(log), "a.v2")


def test_one_that_is_stopped_is_not_started_under_an_operation_and_one_that_died_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "_refuse_cut_off", lambda *_: None)
    monkeypatch.setattr(run, "moved_by_hand", lambda *_: None)
    stopped = Log(*staged("a.v1", "a.v2"), StateSet(release="a.v2", state="standby"), DIFF)
    with pytest.raises(Refused, match=r"diff-1, which ada started, is under way on a\.v2"):
        plan_start(context_of(stopped), "a.v2")
    died = Log(*stopped.entries, WantedSet(release="a.v2", wanted="running"))
    assert [type(stage).__name__ for stage in plan_start(context_of(died), "a.v2").stages] == ["Want", "Launch"]
    assert wanting(died.state(), died.state().releases["a.v2"], "running") == []


def test_nor_under_one_that_began_after_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.operations.context.Context.progress", lambda *_: None)
    log = failed()
    log.entries.append(DIFF)
    with pytest.raises(Refused, match=r"diff-1, which ada started, is under way on a\.v2"):
        begun(log)
    assert log.entries[-1] is DIFF
    log.entries.append(Closed(id="diff-1", outcome="failed"))
    begun(log)
    assert isinstance(log.entries[-2], GenerationStarted) and log.state().releases["a.v2"].generation == 2
    # again: nothing is left to do
    begun(Log(*log.entries, DIFF))


def test_nothing_is_compared_or_switched_where_a_reset_was_left_in_the_middle() -> None:
    live = release("a.v1", state="live")
    second = generation("a.v1", 2, ended=None).model_copy(update={"op": "reset-1"})
    half = replace(live, generations={**live.generations, 2: second}, under=second)
    known = RegistryState(releases={"a.v1": half}, chains={"a": (switch(1, None, "a.v1"),)})
    with pytest.raises(Refused, match="reset-1 has not moved the consumers") as caught:
        refuse_unfinished(known, half)
    assert "switchyard undo reset-1" in caught.value.fix
    refuse_unfinished(known, live)
    # one that goes on writing the same result is as good as before
    same = second.model_copy(update={"result": 1})
    refuse_unfinished(known, replace(half, generations={**live.generations, 2: same}, under=same))
