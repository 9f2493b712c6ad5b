"""An operation in an outage of Kafka: it does again what is left of its plan, and stays open if the outage lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from orchestration.operations import journal
from orchestration.operations.applying.applier import Applier
from orchestration.operations.applying.effects import EFFECTS
from orchestration.operations.execute import execute
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import Seize
from orchestration.operations.plans.stages.releases import SetState, Want
from pipelines.errors import LoginRefused, Refused, SwitchyardError, Unavailable
from pipelines.kafka.failures import TopicGone
from pipelines.model.entries import MarkOrdered, Opened, WantedSet
from pipelines.model.registry import RegistryState
from tests.operations.builders import POSITION, Log, context_of, staged
from tests.shared.stages import before_stage

PLAN = Plan(
    id="reset-1",
    operation=Kind.RESET,
    releases=("a.v1",),
    stages=(Want(release="a.v1", wanted="stopped", before="running"), SetState(release="a.v1", state="ready")),
)


def running() -> Log:
    """A registry in which the plan can begin."""
    return Log(*staged("a.v1"), WantedSet(release="a.v1", wanted="running"))


class Waits:
    """What a context waits with: no time passes but what it waits."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.said: list[str] = []

    @property
    def given(self) -> dict[str, Any]:
        return {"sleep": self._sleep, "monotonic": lambda: self.passed_s, "say": self.said.append}

    def _sleep(self, for_s: float) -> None:
        self.passed_s += for_s


def test_an_operation_goes_on_after_an_outage_and_says_so_once() -> None:
    log, waits, attempts = running(), Waits(), []

    def work() -> None:
        attempts.append(waits.passed_s)
        if len(attempts) < 3:
            raise Unavailable("the leader is dead", fix="wait")

    journal.journaled(context_of(log, **waits.given), PLAN, work)
    closed = log.known.operations[PLAN.id].closed
    assert closed is not None and closed.outcome == "done" and len(attempts) == 3
    assert waits.said == [f"the leader is dead: {PLAN.id} tries again for 120 s. To end this command, press Ctrl-C"]


def test_the_step_that_ends_an_operation_is_taken_after_an_outage_too(monkeypatch: pytest.MonkeyPatch) -> None:
    log, waits = running(), Waits()
    step, left = log.step, ["once", "twice"]

    def unreached(*given: Any, **also: Any) -> RegistryState:
        if left.pop() if left else None:
            raise Unavailable("no answer")
        return step(*given, **also)

    journal.journaled(context_of(log, **waits.given), PLAN, lambda: monkeypatch.setattr(log, "step", unreached))
    closed = log.known.operations[PLAN.id].closed
    assert closed is not None and closed.outcome == "done" and left == []


def test_an_operation_that_takes_hours_may_meet_several_outages_but_not_any_number() -> None:
    log, waits, attempts = running(), Waits(), list[float]()

    def work() -> None:
        attempts.append(waits.passed_s)
        waits.passed_s += 3_600
        raise Unavailable("the leader is dead")

    with pytest.raises(Unavailable):
        journal.journaled(context_of(log, **waits.given), replace(PLAN, deadline_s=86_400.0), work)
    assert len(attempts) == len(waits.said) == 6


def test_an_outage_at_a_later_stage_has_a_time_of_its_own() -> None:
    log, waits = running(), Waits()
    # how long each stage meets an outage: both together take longer than one may
    left_s = {Want: 90.0, SetState: 90.0}

    def meets(kind: type[Stage]) -> Callable[[], None]:
        def outage() -> None:
            if left_s[kind] > 0:
                waits.passed_s, left_s[kind] = waits.passed_s + 30, left_s[kind] - 30
                raise Unavailable(f"no answer to {kind.__name__}")

        return outage

    context = context_of(log, **waits.given)
    with before_stage(Want, meets(Want)), before_stage(SetState, meets(SetState)):
        execute(context, PLAN)
    closed = log.known.operations[PLAN.id].closed
    assert closed is not None and closed.outcome == "done" and waits.passed_s > 180
    tells = [said.partition(":")[0] for said in waits.said if "tries again" in said]
    assert tells == ["no answer to Want", "no answer to SetState"]


def test_an_outage_at_one_stage_ends_an_operation_though_the_stages_before_it_go_well() -> None:
    log, waits = running(), Waits()

    def outage() -> None:
        raise Unavailable("no answer")

    context = context_of(log, **waits.given)
    applier = Applier(context, PLAN)
    with before_stage(SetState, outage), pytest.raises(Unavailable):
        journal.journaled(context, PLAN, applier.run, reached=lambda: applier.reached)
    assert 110 < waits.passed_s < 130


@pytest.mark.parametrize("written", [False, True])
def test_an_operation_begins_though_the_answer_to_its_first_step_was_lost(
    written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, waits = running(), Waits()
    step, left = log.step, ["once"]

    def unreached(*given: Any, **also: Any) -> RegistryState:
        if left:
            left.clear()
            if written:
                step(*given, **also)
            raise Unavailable("no answer")
        return step(*given, **also)

    monkeypatch.setattr(log, "step", unreached)
    journal.journaled(context_of(log, **waits.given), PLAN, lambda: None)
    closed = log.known.operations[PLAN.id].closed
    assert closed is not None and closed.outcome == "done"
    assert sum(isinstance(entry, Opened) for entry in log.entries) == 1


def test_a_stage_that_kafka_s_client_cuts_off_has_met_an_outage() -> None:
    log, waits = running(), Waits()

    def cut_off() -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    plan = replace(PLAN, stages=(SetState(release="a.v1", state="ready"),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EFFECTS, SetState, lambda *_: cut_off())
        with pytest.raises(Unavailable, match="no Kafka broker answers"):
            Applier(context_of(log, **waits.given), plan).run()


def test_a_switch_whose_deadline_passed_in_an_outage_is_aborted_before_it_goes_on() -> None:
    """Its consumers wait, and nobody else may be there to end that."""
    log, waits, seen = running(), Waits(), list[bool]()
    mark = MarkOrdered(id=PLAN.id, release="a.v1", past=POSITION, switch=1, alias="a", deadline_ms=1)

    def work() -> None:
        seen.append(log.known.operations[PLAN.id].aborted)
        if len(seen) == 1:
            log.entries.append(mark)
            raise Unavailable("no answer")
        raise Refused("it was aborted")

    with pytest.raises(Refused, match="it was aborted"):
        journal.journaled(context_of(log, **waits.given), PLAN, work)
    assert seen == [False, True]


def test_ctrl_c_ends_an_operation_though_its_lease_can_not_be_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    log, waits, attempts = Log(*staged("a.v1")), Waits(), list[int]()
    plan = replace(PLAN, stages=(Seize(release="a.v1"), SetState(release="a.v1", state="ready")))

    def unreached(*_: Any, **__: Any) -> Any:
        raise Unavailable("no answer")

    def interrupted() -> None:
        attempts.append(1)
        monkeypatch.setattr(log, "step", unreached)
        raise KeyboardInterrupt

    context = context_of(log, **waits.given)
    with before_stage(SetState, interrupted), pytest.raises(KeyboardInterrupt):
        journal.journaled(context, plan, Applier(context, plan).run)
    assert waits.passed_s == 0 and len(attempts) == 1


@pytest.mark.parametrize(
    "error", [LoginRefused("wrong password"), TopicGone("trades"), Refused("no right"), SwitchyardError("too late")]
)
def test_what_a_wait_does_not_mend_ends_an_operation_at_once(error: SwitchyardError) -> None:
    log, waits = running(), Waits()

    def work() -> None:
        raise error

    with pytest.raises(type(error)):
        journal.journaled(context_of(log, **waits.given), PLAN, work)
    closed = log.known.operations[PLAN.id].closed
    assert closed is not None and closed.outcome == "failed" and waits.passed_s == 0


@pytest.mark.parametrize("lost", ["state", "step"])
def test_an_operation_that_an_outage_has_ended_stays_open_and_says_how_to_resume_it(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = running()

    def unreached(*_: Any, **__: Any) -> Any:
        raise Unavailable("no answer", fix="look at the brokers")

    def work() -> None:
        monkeypatch.setattr(log, lost, unreached)
        raise Unavailable("the leader is dead", fix="wait")

    waits = Waits()
    with pytest.raises(Unavailable) as caught:
        journal.journaled(context_of(log, **waits.given), PLAN, work)
    assert caught.value.fix.endswith(f"; to continue: `switchyard resume {PLAN.id}`")
    assert 110 < waits.passed_s < 130
    assert log.known.operations[PLAN.id].closed is None
    monkeypatch.undo()
    journal.journaled(context_of(log), PLAN, lambda: None)
    assert log.known.operations[PLAN.id].closed is not None
