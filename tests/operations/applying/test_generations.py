"""A stage that takes a release to another generation relies on what the plan was made on: it enters nothing otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestration.operations.applying import generations as module
from orchestration.operations.applying.generations import begin_generation, give_back, inherit_state, seize
from orchestration.operations.applying.work import Work
from orchestration.operations.context import Context
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.generations import BeginGeneration, InheritState, Seize
from pipelines.engine.lease import this_process
from pipelines.errors import Refused, Unavailable
from pipelines.model.entries import Entry, GenerationStarted, LeaseEnded, LeaseTaken
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import RegistryState
from pipelines.settings import Settings
from tests.operations.builders import ENDED, POSITION, Log, context_of, staged

NAME = "a.v1"
SEIZE = Seize(release=NAME)
BEGIN = BeginGeneration(release=NAME, generation=2, start=POSITION, at=POSITION, old=1)
INHERIT = InheritState(release=NAME, old=1, generation=2, at=POSITION, position=POSITION)
FURTHER = SourcePosition(sources={"trades": {0: 8}})


class Overtaken(Log):
    """A registry in which other processes are quicker: `first` is there before the next step decides."""

    first: Sequence[Entry] = ()

    def step(self, decide: Callable[[RegistryState], Sequence[Entry]], **about: Any) -> RegistryState:
        self.entries += self.first
        self.first = ()
        return super().step(decide, **about)


def taken(token: int) -> LeaseTaken:
    return LeaseTaken(release=NAME, token=token, holder=this_process(Settings()))


@pytest.fixture
def log() -> Overtaken:
    return Overtaken(*staged(NAME))


@pytest.fixture
def work(log: Overtaken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """A reset of `a.v1`, which is stopped and has read to `POSITION`."""
    monkeypatch.setenv("SWITCHYARD_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(Context, "beats", lambda _: {})
    monkeypatch.setattr(module, "processed", lambda *_: ())
    monkeypatch.setattr(module, "whole_checkpoint", lambda *_: "a folder")
    has_read_to(POSITION, monkeypatch)
    return Work(context_of(log), Plan(id="reset-1", operation=Kind.RESET, releases=(NAME,), stages=()))


def has_read_to(position: SourcePosition, monkeypatch: pytest.MonkeyPatch) -> None:
    last = ENDED.model_copy(update={"boundary": ENDED.boundary.model_copy(update={"position": position})})
    for name in ("last_of", "progress_of"):
        monkeypatch.setattr(module, name, lambda *_: last)


def test_a_release_whose_lease_nobody_took_goes_to_the_next_generation(work: Work, log: Overtaken) -> None:
    seize(work, SEIZE)
    begin_generation(work, BEGIN)
    known = log.known.releases[NAME]
    assert (known.token, known.generation, known.ended[1].boundary.position) == (1, 2, POSITION)


def test_the_lease_of_one_that_was_started_in_the_meantime_is_not_taken(work: Work, log: Overtaken) -> None:
    log.first = [taken(1)]
    with pytest.raises(Refused, match=r"a\.v1 was started in the meantime") as error:
        seize(work, SEIZE)
    assert "`switchyard status a.v1`" in error.value.fix
    assert log.entries == [*staged(NAME), taken(1)] and work.tokens == {}


def test_a_lease_whose_answer_an_outage_cut_off_is_taken_again(
    work: Work, log: Overtaken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next attempt of the same process, which may not take it for one that somebody else uses."""
    monkeypatch.setattr(log, "now_ms", lambda: 0)
    step = log.step

    def lost(*given: Any, **also: Any) -> None:
        step(*given, **also)
        unreached()

    def unreached(*_: Any, **__: Any) -> None:
        raise Unavailable("no answer")

    monkeypatch.setattr(log, "step", lost)
    with pytest.raises(Unavailable):
        seize(work, SEIZE)
    monkeypatch.setattr(log, "step", unreached)
    with pytest.raises(Unavailable):
        give_back(work, NAME)
    monkeypatch.setattr(log, "step", step)
    again = Work(work.context, work.plan, work.tokens)
    seize(again, SEIZE)
    assert log.known.releases[NAME].token == again.tokens[NAME] == 2
    give_back(again, NAME)
    assert log.known.releases[NAME].lease_ended and again.tokens == {}


def test_nor_does_the_next_attempt_wait_for_that_lease(
    work: Work, log: Overtaken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait until the lease is as old as a driver that boots may be: two minutes."""
    monkeypatch.setattr(log, "now_ms", lambda: 0)
    seize(work, SEIZE)
    assert "starting for" in (Context.holder(work.context, work.release(NAME)) or "")
    again = Work(work.context, work.plan, work.tokens)
    assert not log.known.releases[NAME].lease_ended and again.holder(NAME) is None


def test_a_lease_that_was_asked_for_but_is_another_process_s_is_not_given_back(work: Work, log: Overtaken) -> None:
    """That one has taken the operation over, and works under it."""
    other = this_process(Settings()).model_copy(update={"pid": 1, "started": 1})
    work.tokens[NAME] = 1
    log.entries.append(LeaseTaken(release=NAME, token=1, holder=other, op=work.plan.id))
    give_back(work, NAME)
    assert not log.known.releases[NAME].lease_ended and work.tokens == {}


def test_a_driver_that_lives_is_heard_before_it_counts_as_stopped(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """All heartbeats are old then."""
    passed_s = 0.0

    def sleep(for_s: float) -> None:
        nonlocal passed_s
        passed_s += for_s

    log = Log(*staged(NAME), taken(1).model_copy(update={"at_ms": 1}))
    monkeypatch.setattr(Context, "holder", lambda *_: "a driver" if passed_s >= 3 else None)
    context = context_of(log, sleep=sleep, monotonic=lambda: passed_s)
    assert Work(context, work.plan).holder(NAME) is None
    assert Work(context, work.plan, {}).holder(NAME) == "a driver"
    log.entries.append(LeaseEnded(release=NAME, token=1))
    assert Work(context, work.plan, {}).holder(NAME) is None


def test_a_lease_that_another_thread_of_this_process_uses_is_not_taken(
    work: Work, log: Overtaken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "now_ms", lambda: 0)
    seize(work, SEIZE)
    other = Work(work.context, work.plan)
    with pytest.raises(Refused, match=r"a\.v1 is run by "):
        seize(other, SEIZE)


def test_nor_does_one_whose_lease_was_taken_over_go_to_another_generation(work: Work, log: Overtaken) -> None:
    seize(work, SEIZE)
    log.first = [taken(2)]
    with pytest.raises(Refused, match=r"a\.v1 was started in the meantime"):
        begin_generation(work, BEGIN)
    assert log.entries[-1] == taken(2) and log.known.releases[NAME].generation == 1


def test_nor_does_one_that_has_read_on_since_the_plan(
    work: Work, log: Overtaken, monkeypatch: pytest.MonkeyPatch
) -> None:
    seize(work, SEIZE)
    has_read_to(FURTHER, monkeypatch)
    with pytest.raises(Refused, match=r"a\.v1 has read more input since the plan was made"):
        begin_generation(work, BEGIN)
    assert not any(isinstance(entry, GenerationStarted) and entry.generation == 2 for entry in log.entries)


@pytest.mark.parametrize("position", [POSITION, FURTHER])
def test_its_state_is_kept_only_where_the_plan_found_it(
    work: Work, monkeypatch: pytest.MonkeyPatch, position: SourcePosition
) -> None:
    inherited: list[object] = []
    monkeypatch.setattr(module, "inherit", lambda *given: inherited.append(given[1:4]))
    seize(work, SEIZE)
    has_read_to(position, monkeypatch)
    if position == POSITION:
        inherit_state(work, INHERIT)
    else:
        with pytest.raises(Refused, match=r"a\.v1 has read more input since the plan was made") as error:
            inherit_state(work, INHERIT)
        assert "the release is stopped now; for a new plan, run the same `switchyard reset a.v1`" in error.value.fix
    assert inherited == ([(NAME, 2, 1)] if position == POSITION else [])
