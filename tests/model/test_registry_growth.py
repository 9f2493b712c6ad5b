"""What a long log costs: the fold's work grows with the entries, its state with what exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pipelines.model import registry as model
from pipelines.model.entries import (
    Closed,
    Entry,
    GenerationStarted,
    MarkOrdered,
    Opened,
    Promoted,
    Proposed,
    ReadyRecorded,
    StateSet,
    SwitchAborted,
    WantedSet,
)
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import RegistryState, fold
from tests.operations.builders import POSITION, evidence, staged, switch


class Counting(dict[str, Any]):
    """A table that counts how often it is iterated."""

    times = 0

    def keys(self) -> Any:
        self.times += 1
        return super().keys()

    def __iter__(self) -> Iterator[str]:
        self.times += 1
        return super().__iter__()


def operation(number: int, release: str = "a.v1") -> list[Entry]:
    op = f"diff-{number}"
    return [Opened(id=op, name="diff", releases=(release,), deadline_ms=1, plan={"facts": {"asked": "x"}}),
            Closed(id=op, outcome="done")]  # fmt: skip


def compared(count: int, new: str = "a.v2") -> list[Entry]:
    return [evidence("a.v1", new, id=f"diff-{n}") for n in range(count)]


def test_a_fold_copies_a_table_once_however_many_entries_change_it() -> None:
    begun = fold(RegistryState(), [*staged("a.v1", "a.v2"), *operation(0)])
    releases, operations = Counting(begun.releases), Counting(begun.operations)
    state = RegistryState(releases=releases, operations=operations)
    entries: list[Entry] = [WantedSet(release="a.v1", wanted="running"), *operation(1)] * 50
    fold(state, entries)
    # once for the copy, once to count closed operations
    assert releases.times == 1 and operations.times <= 2
    assert "diff-1" not in state.operations and state.releases["a.v1"].wanted == "stopped"


def test_what_no_entry_concerns_is_not_copied_at_all() -> None:
    state = fold(RegistryState(), [*staged("a.v1"), *operation(0)])
    after = fold(state, [WantedSet(release="a.v1", wanted="running")])
    assert after.operations is state.operations and after.chains is state.chains
    assert fold(state, []) is state


@pytest.mark.slow
def test_the_registry_state_does_not_grow_with_past_operations() -> None:
    def size(count: int) -> int:
        entries = [e for n in range(count) for e in (*operation(n), Proposed(id=f"p-{n}", name="promote", releases=()))]
        state = fold(RegistryState(), [*staged("a.v1", "a.v2"), *entries, *compared(count)])
        return len(state.operations) + len(state.past) + len(state.proposals) + len(state.evidence)

    assert size(2_000) == size(4_000) <= 2 * (model.CLOSED_KEPT + model.PROPOSALS_KEPT) + model.EVIDENCE_KEPT


def test_the_newest_evidence_of_each_two_releases_is_kept_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "EVIDENCE_KEPT", 2)
    entries = [*compared(3), evidence("a.v3", "a.v1", id="other"), evidence("a.v2", "a.v1", id="back")]
    state = fold(RegistryState(), entries)
    assert [e.id for e in state.evidence] == ["diff-2", "other", "back"]
    stepwise = RegistryState()
    for entry in entries:
        stepwise = fold(stepwise, [entry])
    assert stepwise == state


def test_an_operation_under_way_is_never_forgotten_and_a_closed_one_in_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model, "CLOSED_KEPT", 2)
    opened = Opened(id="promote-1", name="promote", releases=("a.v1",), deadline_ms=1)
    state = fold(RegistryState(), [opened, *(e for n in range(9) for e in operation(n))])
    closed = [op for op, o in state.operations.items() if o.closed]
    assert "promote-1" in state.operations and closed[-1] == "diff-8" and len(closed) < 4
    assert not state.past, "nobody asks for a diff again"


def test_the_barrier_that_a_follower_may_wait_at_is_known_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "CLOSED_KEPT", 1)
    monkeypatch.setattr(model, "BARRIERS_KEPT", 2)

    def aborted(number: int) -> list[Entry]:
        op = f"promote-{number}"
        past = SourcePosition(sources={})
        mark = MarkOrdered(id=op, release="a.v1", past=past, switch=2, alias="a", deadline_ms=1)
        [opened, closed] = operation(number)
        return [
            opened.model_copy(update={"id": op}),
            mark,
            SwitchAborted(alias="a", id=op),
            closed.model_copy(update={"id": op}),
        ]

    state = fold(RegistryState(), [e for n in range(3) for e in aborted(n)])
    state = fold(state, [e for n in range(20) for e in operation(n)])
    assert list(state.past) == ["promote-1", "promote-2"]
    known = state.known_operations["promote-2"]
    assert known.resolved and known.opened.plan == {} and "promote-2" not in state.operations


def test_the_reset_that_began_a_generation_can_be_undone_however_long_ago_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model, "CLOSED_KEPT", 1)
    [opened, closed] = operation(1)
    reset = [opened.model_copy(update={"id": "reset-1", "name": "reset"}),
             GenerationStarted(release="a.v1", generation=2, start=POSITION, op="reset-1"),
             closed.model_copy(update={"id": "reset-1"})]  # fmt: skip
    state = fold(RegistryState(), [*staged("a.v1"), *reset, *(e for n in range(20) for e in operation(n))])
    assert state.known_operations["reset-1"].opened.releases == ("a.v1",)


def test_what_commands_asked_the_log_for_is_in_the_state() -> None:
    fast, slow = ({"records_per_s": 9_000.0}, {"records_per_s": 10})
    state = fold(RegistryState(), [
        *staged("a.v1", "a.v2"),
        *(ReadyRecorded(release="a.v1", generation=1, facts=facts) for facts in (fast, slow, {})),
        StateSet(release="a.v1", state="live", at_ms=7),
        Promoted(alias="a", switch=switch(1, None, "a.v1"), at_ms=8, op="promote-1"),
        Promoted(alias="a", switch=switch(2, "a.v1", "a.v2"), at_ms=9, op="promote-2"),
    ])  # fmt: skip
    release = state.releases["a.v1"]
    assert (release.records_per_s, release.state_ms) == (9_000.0, 7)
    assert (state.promoted["a"].at_ms, state.promoted["a"].switch.number) == (9, 2)


def test_a_generation_says_when_it_ended() -> None:
    from tests.model.test_registry_entries import NAME, PROGRESS

    second = GenerationStarted(release=NAME, generation=2, start=POSITION, ended=PROGRESS, at_ms=5)
    state = fold(RegistryState(), [*staged(NAME), second])
    assert state.releases[NAME].ended_ms == {1: 5}
