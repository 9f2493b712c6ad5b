"""What a plan's stages take for the drivers' answers: those to its own operation alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestration.operations.applying.work import Work
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from pipelines.errors import SwitchyardError
from pipelines.model.progress import Boundary, Mark
from tests.operations.builders import NOWHERE, POSITION, Log, context_of, staged

PLAN = Plan(id="diff-2", operation=Kind.DIFF, releases=("a.v1", "a.v2"), stages=())


def mark(op: str) -> Mark:
    return Mark(op=op, boundary=Boundary(batch_id=3, position=POSITION), result=NOWHERE)


def work(**marks: Mark | None) -> Work:
    made = Work(context_of(Log(*staged("a.v1", "a.v2"))), PLAN)
    made._tails["a.v1"] = cast(Any, SimpleNamespace(newest=SimpleNamespace(**marks)))
    return made


def test_a_release_stands_at_the_mark_that_it_set_for_this_operation() -> None:
    assert work(evidence=mark("diff-2"), barrier=None).end("a.v1", "evidence") == mark("diff-2")


@pytest.mark.parametrize("left", [None, mark("diff-1")])
def test_not_at_one_that_it_set_for_another(left: Mark | None) -> None:
    with pytest.raises(SwitchyardError, match=r"a\.v1 has no evidence mark for diff-2"):
        work(evidence=left, barrier=mark("diff-2")).end("a.v1", "evidence")


def test_where_it_could_not_meet_it_stands_where_it_ended() -> None:
    made = work(evidence=mark("diff-1"))
    made.ends["a.v1"] = mark("diff-9")
    assert made.end("a.v1", "evidence") == mark("diff-9")
