"""Does something before a stage of a plan is applied. The stage is named by its kind or id, never by its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from orchestration.operations.applying.applier import Applier
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import Stage, StageId


def is_meant(which: type[Stage] | StageId, plan: Plan, stage: Stage) -> bool:
    """Whether `which` names `stage` of `plan`, by its kind or by its id."""
    if isinstance(which, type):
        return isinstance(stage, which)
    named = zip(plan.stages, plan.stage_ids, strict=True)
    # compares by identity: a plan can have two equal stages
    return any(each is stage and known == which for each, known in named)


def acting_before(which: type[Stage] | StageId, act: Callable[[], object]) -> Callable[[Applier, Stage], None]:
    """`Applier.apply`, with a call of `act` before each stage that `which` names."""
    apply = Applier.apply

    def applied(self: Applier, stage: Stage) -> None:
        if is_meant(which, self._plan, stage):
            act()
        apply(self, stage)

    return applied


@contextmanager
def before_stage(which: type[Stage] | StageId, act: Callable[[], object]) -> Iterator[None]:
    """While the block runs, calls `act` before each stage that `which` names is applied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Applier, "apply", acting_before(which, act))
        yield
