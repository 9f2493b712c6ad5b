"""What a refused undo tells to do instead."""

from __future__ import annotations

import pytest

from orchestration.operations.planning.reset.undo import plan_undo
from pipelines.errors import Refused
from pipelines.model.entries import Closed, Entry, Opened
from tests.operations.builders import ENDED, Log, context_of, generation, staged


def reset(op: str, number: int) -> list[Entry]:
    begun = generation("a.v1", number, ended=ENDED.model_copy(update={"generation": number - 1}), op=op)
    return [Opened(id=op, name="reset", releases=("a.v1",), deadline_ms=2**60), begun, Closed(id=op, outcome="done")]


@pytest.mark.parametrize(
    ("later", "instead"),
    [
        (reset("reset-2", 3), "`switchyard undo reset-2 --stop --execute`"),
        # a candidate that had failed starts in a new generation
        ([generation("a.v1", 3, op="start-1")], "`switchyard reset a.v1 --to-earliest`"),
    ],
    ids=["a reset", "a start"],
)
def test_a_release_that_was_changed_since_is_not_undone(later: list[Entry], instead: str) -> None:
    log = Log(*staged("a.v1"), *reset("reset-1", 2), *later)
    with pytest.raises(Refused, match=r"changed a\.v1 after reset-1") as refused:
        plan_undo(context_of(log), "reset-1")
    assert instead in refused.value.fix
