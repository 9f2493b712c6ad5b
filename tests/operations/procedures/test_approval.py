"""A plan that a reprocess proposed is approved by its id, and only if it would still do the very same.

Approvals take longer than evidence stays young: then it is renewed, and what it says may be no worse than what was shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.context import Context
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.switching import AppendSwitch, PrepareDelta, WriteDelta
from orchestration.operations.procedures import approve, examine
from orchestration.operations.procedures.approve import plan_approved
from pipelines.errors import BadUsage, Refused
from pipelines.model.entries import Opened, Promoted, Proposed, Staged, Switch, VerdictRecorded
from pipelines.model.positions import ResultPosition
from pipelines.model.registry import RegistryState, fold
from tests.operations.builders import evidence, spec

DELTA = WriteDelta(evidence="diff-1", old="a.v1", new="a.v2", max_changed=0.2)
SWITCH = AppendSwitch(alias="a", number=2, old="a.v1", new="a.v2", evidence="diff-1")
PLAN = Plan(id="promote-1", operation=Kind.PROMOTE, releases=("a.v2", "a.v1"), alias="a", stages=(DELTA, SWITCH))
PROPOSED = Proposed(id="promote-1", name="promote", releases=PLAN.releases, alias="a", plan=PLAN.for_journal())


START = ResultPosition(topics={})
LIVE = Promoted(
    alias="a",
    switch=Switch(number=1, old=None, old_generation=None, old_end=None, new="a.v1", new_generation=1, new_start=START),
)
# 6 of 1,000 keys differ
SHOWN = Comparison(only_live=0, only_new=2, changed=4, identical=994, live="a.v1", new="a.v2")


class Asked(dict[str, Any]):
    """What the promotion is planned with now; `plan`: what it would be, `age_s`: how old its evidence is."""


def context(*also: Any, said: list[str] | None = None, written: list[Any] | None = None) -> Context:
    entries: list[Any] = [
        Staged(spec=spec("a.v1")),
        LIVE,
        Staged(spec=spec("a.v2")),
        VerdictRecorded(release="a.v2", generation=1, evidence="diff-1", upto=START, passed=3, failed=0, errored=0,
                        volume_tolerance=0.6),
        evidence("a.v1", "a.v2", summary=SHOWN.as_json()),
        PROPOSED,
        *also,
    ]  # fmt: skip
    state = fold(RegistryState(), entries)

    def step(decide: Callable[[RegistryState], list[Any]], op: str) -> None:
        assert written is not None, "nothing may be written"
        written.extend(decide(state))

    registry = SimpleNamespace(state=lambda: state, step=step, history=lambda: iter(entries))
    return cast(Context, SimpleNamespace(registry=registry, say=(said if said is not None else []).append))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked(plan=replace(PLAN, id="promote-2"), age_s=0.0)

    def plan_promote(_: Context, name: str, *, max_evidence_age_s: float, **options: Any) -> Plan:
        found.update(name=name, **options)
        if "refused" in found:
            raise Refused(found["refused"], fix="wait")
        if found["age_s"] > max_evidence_age_s:
            raise Refused(f"the diff is {found['age_s']:.0f} s old, more than --max-evidence-age", fix="reprocess")
        return cast(Plan, found["plan"])

    def again(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is to be compared or checked again")

    monkeypatch.setattr(approve, "plan_promote", plan_promote)
    monkeypatch.setattr(examine, "diff", again)
    monkeypatch.setattr(examine, "check", again)
    return found


def test_the_plan_keeps_its_id_and_its_limit(asked: Asked) -> None:
    found = plan_approved(context(), "promote-1", reason="looks right")
    assert (found.id, found.stages) == ("promote-1", PLAN.stages)
    assert (asked["name"], asked["max_changed"], asked["reason"]) == ("a.v2", 0.2, "looks right")


@pytest.mark.parametrize(
    "stages", [(DELTA, replace(SWITCH, number=3)), (replace(DELTA, evidence="diff-2"), SWITCH), (SWITCH,)]
)
def test_a_plan_that_would_do_something_else_now_is_refused(asked: Asked, stages: Any) -> None:
    asked["plan"] = replace(PLAN, id="promote-2", stages=stages)
    with pytest.raises(Refused, match="would now do something else") as error:
        plan_approved(context(), "promote-1")
    assert error.value.fix.endswith("switchyard reprocess a --version 2 --execute`")


def test_how_much_is_read_in_advance_may_change_while_a_plan_waits(asked: Asked) -> None:
    first = PrepareDelta(evidence="diff-1", old="a.v1", new="a.v2")
    asked["plan"] = replace(PLAN, id="promote-2", stages=(first, *PLAN.stages))
    assert plan_approved(context(), "promote-1").stages == (first, *PLAN.stages)


def test_an_unknown_plan_is_bad_usage_that_names_the_newest_one(asked: Asked) -> None:
    with pytest.raises(BadUsage, match="no plan promote-9 waits") as error:
        plan_approved(context(), "promote-9")
    assert "promote-1" in error.value.fix


def test_a_plan_is_approved_once(asked: Asked) -> None:
    begun = Opened(id="promote-1", name="promote", releases=PLAN.releases, alias="a", deadline_ms=1)
    with pytest.raises(Refused, match="was already approved"):
        plan_approved(context(begun), "promote-1")
    with pytest.raises(BadUsage, match="no plan promote-9") as error:
        plan_approved(context(begun), "promote-9")
    assert "reprocess" in error.value.fix


# -- evidence that is too old


@pytest.fixture
def again(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An hour has gone by; `diff`: what a new one would find, `ok`: whether the checks pass, `did`: what was done."""
    found: dict[str, Any] = {"diff": SHOWN, "ok": True, "did": []}
    asked["age_s"] = 3600.0

    def diff(_: Context, name: str) -> Comparison:
        found["did"].append(f"diff {name}")
        stages = (replace(DELTA, evidence="diff-2"), replace(SWITCH, evidence="diff-2"))
        asked.update(age_s=1.0, plan=replace(asked["plan"], stages=found.get("stages", stages)))
        return cast(Comparison, found["diff"])

    def check(_: Context, name: str, *, volume_tolerance: float) -> Any:
        found["did"].append(f"check {name} {volume_tolerance}")
        return SimpleNamespace(ok=found["ok"], results=[SimpleNamespace(name="volume", outcome="failed")], docs="page")

    monkeypatch.setattr(examine, "diff", diff)
    monkeypatch.setattr(examine, "check", check)
    return found


def test_evidence_that_is_too_old_is_renewed_as_it_was_made(asked: Asked, again: dict[str, Any]) -> None:
    said: list[str] = []
    found = plan_approved(context(said=said), "promote-1")
    assert again["did"] == ["diff a.v2", "check a.v2 0.6"]
    assert found.id == "promote-1"
    assert found.stages == (replace(DELTA, evidence="diff-2"), replace(SWITCH, evidence="diff-2"))
    assert "comparing and checking a.v2 again" in said[0]
    assert "no worse than shown: 4 changed, 0 only in a.v1, 2 only in a.v2, 994 identical" in said[1]


def test_what_is_not_compared_is_only_checked_again(asked: Asked, again: dict[str, Any]) -> None:
    streams = [Staged(spec=spec(name, table=False, comparable="no")) for name in ("a.v1", "a.v2")]
    plan = replace(PLAN, stages=(replace(SWITCH, evidence=None),))
    asked["plan"] = replace(plan, id="promote-2")
    proposed = PROPOSED.model_copy(update={"plan": plan.for_journal()})
    checked = examine.check

    def check(*arguments: Any, **options: Any) -> Any:
        asked["age_s"] = 1.0
        return checked(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examine, "check", check)
        found = plan_approved(context(*streams, proposed), "promote-1")
    assert (found.id, found.stages) == ("promote-1", plan.stages)
    assert again["did"] == ["check a.v2 0.1"]


def test_a_plan_that_is_only_shown_says_that_it_would_be_renewed(asked: Asked, again: dict[str, Any]) -> None:
    found = plan_approved(context(), "promote-1", refresh=False)
    assert again["did"] == []
    assert (found.id, found.stages) == ("promote-1", PLAN.stages)
    assert "older than 10 min" in found.warnings[0] and "compared and checked again" in found.warnings[0]
    asked["age_s"] = 10.0
    assert plan_approved(context(), "promote-1", refresh=False).warnings == ()


def test_a_promotion_that_lacks_more_than_young_evidence_is_refused_at_once(
    asked: Asked, again: dict[str, Any]
) -> None:
    asked["refused"] = "a.v2 can't be promoted: the diff is 3600 s old; it isn't running"
    with pytest.raises(Refused, match="it isn't running"):
        plan_approved(context(), "promote-1")
    assert again["did"] == []


def test_a_promotion_of_another_switch_is_not_compared_again(asked: Asked, again: dict[str, Any]) -> None:
    asked["plan"] = replace(PLAN, stages=(DELTA, replace(SWITCH, number=3)))
    with pytest.raises(Refused, match="would now do something else"):
        plan_approved(context(), "promote-1")
    assert again["did"] == []


def test_a_switch_meanwhile_is_seen(asked: Asked, again: dict[str, Any]) -> None:
    again["stages"] = (replace(DELTA, evidence="diff-2"), replace(SWITCH, evidence="diff-2", number=3))
    with pytest.raises(Refused, match="would now do something else"):
        plan_approved(context(), "promote-1")


def test_what_fails_its_checks_now_is_refused(asked: Asked, again: dict[str, Any]) -> None:
    again["ok"] = False
    with pytest.raises(Refused, match=r"a\.v2 failed its checks: volume"):
        plan_approved(context(), "promote-1")


NO_LIMIT = replace(DELTA, max_changed=None)


def without_limit(asked: Asked, again: dict[str, Any]) -> Proposed:
    """The proposal of a reprocess without --max-changed."""
    plan = replace(PLAN, stages=(NO_LIMIT, SWITCH))
    asked["plan"] = replace(plan, id="promote-2")
    again["stages"] = (replace(NO_LIMIT, evidence="diff-2"), replace(SWITCH, evidence="diff-2"))
    return PROPOSED.model_copy(update={"plan": plan.for_journal()})


@pytest.mark.parametrize(
    ("changes", "limited", "worse"),
    [
        # twice the keys, differing as before
        ({"only_new": 4, "changed": 8, "identical": 1_988}, False, None),
        # one class by 7 per cent more, another by none
        ({"only_new": 15, "changed": 30, "identical": 6_955}, False, None),
        ({"changed": 5}, False, "5 changed (0.50%), 4 (0.40%) shown"),
        # of what the operator said, the promotion itself takes care
        ({"changed": 5}, True, None),
        ({"only_live": 1}, False, "1 only in a.v1 (0.10%), 0 (0.00%) shown"),
        # a kind of difference that nobody has seen is within no limit
        ({"only_live": 1}, True, "1 only in a.v1 (0.10%), 0 (0.00%) shown"),
        ({"only_new": 0, "changed": 0, "identical": 1_000}, False, None),
    ],
)
def test_an_outcome_worse_than_shown_proposes_a_new_plan(
    asked: Asked, again: dict[str, Any], changes: dict[str, Any], limited: bool, worse: str | None
) -> None:
    again["diff"] = replace(SHOWN, **changes)
    also = [] if limited else [without_limit(asked, again)]
    written: list[Any] = []
    if worse is None:
        assert plan_approved(context(*also), "promote-1").id == "promote-1"
        return
    with pytest.raises(Refused) as error:
        plan_approved(context(*also, written=written), "promote-1")
    assert error.value.what.endswith(worse)
    assert "switchyard approve promote-2 --execute" in error.value.fix
    [proposal] = written
    assert isinstance(proposal, Proposed) and proposal.id == "promote-2"
    assert Plan.from_journal(proposal).stages == asked["plan"].stages


@pytest.mark.parametrize(
    ("taken_for", "said"),
    [
        ({"app": "b"}, "promotes a.v2, not b"),
        ({"app": "a.v3"}, "promotes a.v2, not a.v3"),
        ({"app": "a", "version": 3}, "promotes a.v2, not version 3"),
        ({"max_changed": 0.1}, "promotes a.v2, with max_changed 0.2, not 0.1"),
        ({"app": "b", "version": 1}, "promotes a.v2, not b, not version 1"),
    ],
)
def test_a_plan_of_something_else_is_bad_usage(asked: Asked, taken_for: dict[str, Any], said: str) -> None:
    with pytest.raises(BadUsage, match=re.escape(f"promote-1 {said}")):
        plan_approved(context(), "promote-1", **taken_for)
    assert "name" not in asked


@pytest.mark.parametrize("name", ["a", "a.v2"])
def test_a_plan_that_is_what_it_is_taken_for_is_asked_as_said(asked: Asked, name: str) -> None:
    plan_approved(context(), "promote-1", app=name, version=2, max_changed=0.2, max_evidence_age_s=60)
    assert asked["max_changed"] == 0.2
    # a minute is what was given: what is two minutes old would be compared again
    asked["age_s"] = 120.0
    with pytest.raises(AssertionError, match="compared or checked again"):
        plan_approved(context(), "promote-1", max_evidence_age_s=60)


def test_a_limit_is_held_against_a_plan_that_keeps_none(asked: Asked) -> None:
    asked["plan"] = replace(PLAN, id="promote-2", stages=(SWITCH,))
    kept = PROPOSED.model_copy(update={"plan": replace(PLAN, stages=(SWITCH,)).for_journal()})
    plan_approved(context(kept), "promote-1", max_changed=0.1)
    assert asked["max_changed"] == 0.1
