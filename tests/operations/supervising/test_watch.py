"""Going back from one release: not again where someone has gone back already, and the watch not either."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from orchestration.operations.context import Context
from orchestration.operations.journal import begin
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.switching import AppendSwitch
from orchestration.operations.supervising import watch as module
from orchestration.operations.supervising.alerts import Alert, CheckNotRun, ChecksNotEvaluated
from orchestration.operations.supervising.watch import watch
from pipelines.errors import BadUsage, Refused
from pipelines.model.switch import promotion
from tests.operations.builders import Log, context_of, staged, switch, switched

FAILED = SimpleNamespace(failed=1, errored=0, failures=("volume: expected less; found more",))


@pytest.fixture
def log() -> Log:
    """v2 went live by switch 2, from v1."""
    return Log(*staged("a.v1", "a.v2"), *switched(1, None, "a.v1"), *switched(2, "a.v1", "a.v2"))


def gone_back(log: Log) -> None:
    log.entries += switched(3, "a.v2", "a.v1")


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that the watch has had carried out."""
    found: list[Plan] = []
    monkeypatch.setattr(module, "execute", lambda _, plan: found.append(plan))
    return found


def checked(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    def check(context: Context, name: str) -> Any:
        meanwhile()
        return FAILED

    monkeypatch.setattr(module, "check", check)


def test_the_watch_does_not_roll_back_a_rollback(
    log: Log, monkeypatch: pytest.MonkeyPatch, executed: list[Plan]
) -> None:
    checked(monkeypatch, lambda: gone_back(log))
    found = watch(context_of(log), "a.v2", for_s=600)
    assert not executed and not found.rolled_back
    assert (found.checks, found.message) == (1, "a.v2 is no longer live, so the watch is over")


def test_nor_one_that_came_between_its_plan_and_the_first_step(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(context: Context, plan: Plan) -> None:
        gone_back(log)
        begin(context, plan)

    checked(monkeypatch, lambda: None)
    monkeypatch.setattr(module, "execute", execute)
    stage = AppendSwitch(alias="a", number=3, old="a.v2", new="a.v1", evidence=None)
    planned = Plan(id="rollback-1", operation=Kind.ROLLBACK, releases=("a.v1", "a.v2"), alias="a", stages=(stage,))
    monkeypatch.setattr(module, "plan_rollback", lambda *_, **options: planned)
    assert not watch(context_of(log), "a.v2", for_s=600).rolled_back


def test_the_watch_rolls_back_the_release_that_it_watched(
    log: Log, monkeypatch: pytest.MonkeyPatch, executed: list[Plan]
) -> None:
    asked: dict[str, Any] = {}
    checked(monkeypatch, lambda: None)
    monkeypatch.setattr(module, "plan_rollback", lambda *_, **options: asked.update(options))
    found = watch(context_of(log), "a.v2", for_s=600)
    assert found.rolled_back and len(executed) == 1
    assert asked["leaving"] == "a.v2" and "volume" in asked["reason"]


def evaluated(**found: Any) -> Any:
    return SimpleNamespace(**{"failed": 0, "errored": 0, "failures": (), **found})


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Refused("a.v2 has no result yet", fix="start it"), CheckNotRun(release="a.v2", error="a.v2 has no result yet")),
        (evaluated(errored=1, failures=("volume: odd",)), ChecksNotEvaluated(release="a.v2", failures=("volume: odd",))),
        (evaluated(), None),
        # what it says of itself is no reason
        (evaluated(failures=("it could not be better",)), None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("words", ["it could not run", "in other words"])
def test_what_could_not_be_checked_is_alerted_whatever_is_said_of_it(
    log: Log, monkeypatch: pytest.MonkeyPatch, found: Any, expected: Alert | None, words: str
) -> None:
    def check(context: Context, name: str) -> Any:
        context.say("the session could not be faster")
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(module, "check", check)
    monkeypatch.setattr(module, "told", lambda alert: words)
    said: list[str] = []
    sent: list[Alert] = []
    outcome = watch(context_of(log, say=said.append), "a.v2", for_s=0, alert=lambda *found: sent.extend(found))
    assert not outcome.rolled_back
    assert sent == ([expected] if expected is not None else [])
    assert said == ["the session could not be faster", *([words] if expected is not None else [])]


def test_a_rollback_that_is_refused_while_the_release_is_live_is_told(
    log: Log, monkeypatch: pytest.MonkeyPatch, executed: list[Plan]
) -> None:
    def refused(*_: Any, **options: Any) -> Plan:
        raise Refused("a.v1 isn't running")

    checked(monkeypatch, lambda: None)
    monkeypatch.setattr(module, "plan_rollback", refused)
    with pytest.raises(Refused, match=r"a\.v1 isn't running"):
        watch(context_of(log), "a.v2", for_s=600)


def test_a_rollback_leaves_the_release_that_is_named_or_none(log: Log) -> None:
    gone_back(log)
    with pytest.raises(Refused, match=r"a\.v1 has been live since switch 3, not a\.v2") as error:
        plan_rollback(context_of(log), "a", leaving="a.v2")
    assert error.value.exit_code == 3 and "switchyard log a" in error.value.fix
    with pytest.raises(BadUsage, match=r"no release a\.v7"):
        plan_rollback(context_of(log), "a", leaving="a.v7")


def test_the_live_release_may_be_left(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    # as far as the brokers' word is needed
    monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_: {})
    with pytest.raises(Refused, match=r"a\.v1 isn't running"):
        plan_rollback(context_of(log), "a", leaving="a.v2")


def test_a_planned_switch_is_bound_to_its_number_in_the_chain(log: Log) -> None:
    stage = AppendSwitch(alias="a", number=3, old="a.v2", new="a.v1", evidence=None)
    plan = Plan(id="rollback-1", operation=Kind.ROLLBACK, releases=("a.v1", "a.v2"), alias="a", stages=(stage,))
    opened = begin(context_of(log), plan)
    gone_back(log)
    # back and forth: the very same release is live again
    log.entries += switched(4, "a.v1", "a.v2")
    with pytest.raises(Refused, match="alias a has changed since the plan"):
        promotion(log.state(), "a", next(iter(opened.operations)), switch(3, "a.v2", "a.v1"))
