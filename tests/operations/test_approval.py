"""A plan that a reprocess proposed is approved by its id, and only if it would still do the very same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestration.operations import reprocess
from orchestration.operations.context import Context
from orchestration.operations.plan import Plan
from orchestration.operations.reprocess import plan_approved
from orchestration.operations.stages import AppendSwitch, WriteDelta
from pipelines.errors import BadUsage, Refused
from pipelines.model.registry import Opened, Proposed, RegistryState, Staged, fold
from tests.operations.builders import spec

DELTA = WriteDelta(evidence="diff-1", old="a.v1", new="a.v2", max_changed=0.2)
SWITCH = AppendSwitch(alias="a", number=2, old="a.v1", new="a.v2", evidence="diff-1")
PLAN = Plan(id="promote-1", operation="promote", releases=("a.v2", "a.v1"), alias="a", stages=(DELTA, SWITCH))
PROPOSED = Proposed(id="promote-1", name="promote", releases=PLAN.releases, alias="a", plan=PLAN.for_journal())


def context(*also: Any) -> Context:
    state = fold(RegistryState(), [Staged(spec=spec("a.v2")), PROPOSED, *also])
    return cast(Context, SimpleNamespace(registry=SimpleNamespace(state=lambda: state)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the promotion is planned with now; `plan`: what it would be."""
    found: dict[str, Any] = {"plan": replace(PLAN, id="promote-2")}

    def plan_promote(_: Context, name: str, **options: Any) -> Plan:
        found.update(name=name, **options)
        return cast(Plan, found["plan"])

    monkeypatch.setattr(reprocess.sw, "plan_promote", plan_promote)
    return found


def test_the_plan_keeps_its_id_and_its_limit(asked: dict[str, Any]) -> None:
    found = plan_approved(context(), "promote-1", reason="looks right")
    assert (found.id, found.stages) == ("promote-1", PLAN.stages)
    assert (asked["name"], asked["max_changed"], asked["reason"]) == ("a.v2", 0.2, "looks right")


@pytest.mark.parametrize(
    "stages", [(DELTA, replace(SWITCH, number=3)), (replace(DELTA, evidence="diff-2"), SWITCH), (SWITCH,)]
)
def test_a_plan_that_would_do_something_else_now_is_refused(asked: dict[str, Any], stages: Any) -> None:
    asked["plan"] = replace(PLAN, id="promote-2", stages=stages)
    with pytest.raises(Refused, match="would do something else now") as error:
        plan_approved(context(), "promote-1")
    assert error.value.fix.endswith("switchyard reprocess a --version 2 --execute`")


def test_an_unknown_plan_is_bad_usage_that_names_the_newest_one(asked: dict[str, Any]) -> None:
    with pytest.raises(BadUsage, match="no plan promote-9 waits") as error:
        plan_approved(context(), "promote-9")
    assert "promote-1" in error.value.fix


def test_a_plan_is_approved_once(asked: dict[str, Any]) -> None:
    begun = Opened(id="promote-1", name="promote", releases=PLAN.releases, alias="a", deadline_ms=1)
    with pytest.raises(Refused, match="was approved already"):
        plan_approved(context(begun), "promote-1")
    with pytest.raises(BadUsage, match="no plan promote-9") as error:
        plan_approved(context(begun), "promote-9")
    assert "reprocess" in error.value.fix
