"""What a refused undo tells to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.operations.context import Context
from orchestration.operations.planning.reset import undo as module
from orchestration.operations.planning.reset.undo import plan_undo
from pipelines.errors import BadUsage, Refused
from pipelines.model.entries import Closed, Entry, Opened, Promoted, Switch
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Progress
from tests.operations.builders import ENDED, NOWHERE, Kafka, Log, context_of, generation, staged, switched


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


@pytest.mark.parametrize(
    ("op", "entries", "way"),
    [
        ("promote-1", [], "`switchyard log a.v1` lists its resets"),
        # it is about no release
        ("repair-1", [Opened(id="repair-1", name="repair", releases=(), deadline_ms=2**60)], "no release was reset"),
        ("reset-0", [], "no release was reset"),
        ("reset-0", [*reset("reset-1", 2), *reset("reset-2", 3)], "the last resets are: reset-1, reset-2"),
    ],
)
def test_nothing_but_a_reset_is_undone(op: str, entries: list[Entry], way: str) -> None:
    promoted = [
        Opened(id="promote-1", name="promote", releases=("a.v1",), alias="a", deadline_ms=2**60),
        *switched(1, None, "a.v1", op="promote-1"),
        Closed(id="promote-1", outcome="done"),
    ]
    log = Log(*staged("a.v1"), *promoted, *entries)
    with pytest.raises(BadUsage, match=f"there is no reset {op}") as refused:
        plan_undo(context_of(log), op)
    assert refused.value.fix == way


def at(first: int, second: int) -> SourcePosition:
    return SourcePosition(sources={"trades": {0: first, 1: second}})


def read_to(position: SourcePosition, number: int) -> Progress:
    boundary = ENDED.boundary.model_copy(update={"position": position})
    return ENDED.model_copy(update={"generation": number, "boundary": boundary})


@pytest.mark.parametrize(
    ("now", "refused"),
    # None: it has not started yet, and stands where the reset put it
    [(None, True), (at(4, 9), True), (at(5, 9), False)],
)
def test_consumers_are_not_taken_back_to_a_result_that_is_further(
    now: SourcePosition | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition went back, the other to its end: consumers have moved to the new result at once."""
    start, old = at(2, 9), read_to(at(5, 5), 1)
    moved = Switch(number=2, old="a.v1", old_generation=1, old_end=NOWHERE, new="a.v1", new_generation=2,
                   new_start=ResultPosition(topics={"a.v1.g2": {0: 0}}))  # fmt: skip
    log = Log(
        *(*staged("a.v1"), *switched(1, None, "a.v1")),
        Opened(id="reset-1", name="reset", releases=("a.v1",), deadline_ms=2**60),
        generation("a.v1", 2, start=start, ended=old, op="reset-1", seed=read_to(start, 2)),
        Promoted(alias="a", switch=moved, op="reset-1"),
        Closed(id="reset-1", outcome="done"),
    )
    made: list[Any] = []
    monkeypatch.setattr(Context, "beats", lambda _: {})
    monkeypatch.setattr(Context, "progress", lambda *_: None if now is None else read_to(now, 2))
    monkeypatch.setattr(module, "has_checkpoint", lambda *_: True)
    monkeypatch.setattr(module, "_plan_of", lambda _, undo, **__: made.append(undo.generation))
    context = context_of(log, Kafka(names={"a.v1.g1", "a.v1.g2"}, first={"trades": {0: 0, 1: 0}}))
    if refused:
        with pytest.raises(
            Refused, match=r"a\.v1 has not yet reached the position that it had before reset-1"
        ) as error:
            plan_undo(context, "reset-1")
        assert "`switchyard start a.v1 --execute`, and undo the reset when" in error.value.fix
    else:
        plan_undo(context, "reset-1")
    assert made == ([] if refused else [1])
