"""An operation that waits for a driver says so when nobody runs it, and waits for one that comes back."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestration.local import presence
from orchestration.local.presence import is_supervised, say_gone, say_present
from orchestration.operations.applying import vigil as module
from orchestration.operations.applying import work
from orchestration.operations.applying.meeting import flag_boundary
from orchestration.operations.applying.vigil import Vigil
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.switching import FlagBoundary
from pipelines.engine.lease import this_process
from pipelines.errors import SwitchyardError
from pipelines.kafka.clock import now_ms
from pipelines.model.entries import Entry, LeaseEnded, LeaseTaken, MarkOrdered, Opened, StateSet, WantedSet
from pipelines.settings import Settings
from tests.operations.builders import POSITION, Log, context_of, staged

NAME = "sums.v1"
SETTINGS = Settings(bootstrap_servers="127.0.0.1:1")
MINE = this_process(SETTINGS)
# the process that has this pid now is another one
DEAD = MINE.model_copy(update={"started": MINE.started - 1})
ELSEWHERE = MINE.model_copy(update={"boot_id": "of another host"})
RUNNING: list[Entry] = [*staged(NAME), WantedSet(release=NAME, wanted="running")]


class Watch:
    """A vigil over `sums.v1`, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *entries: Entry) -> None:
        self.log = Log(*RUNNING, *entries)
        self.time_s = 100.0
        self.supervised = False
        self.processes: list[Any] = []
        monkeypatch.setattr(module, "is_supervised", lambda _: self.supervised)
        monkeypatch.setattr(module, "running_with", lambda _: self.processes)
        self.vigil = Vigil(context_of(self.log, monotonic=lambda: self.time_s), NAME)

    def says(self, within_s: float) -> tuple[float, SwitchyardError] | None:
        """After how many seconds it says that nobody runs the release, and what; None: not within `within_s`."""
        began = self.time_s
        while self.time_s - began < within_s:
            try:
                self.vigil.look()
            except SwitchyardError as error:
                return self.time_s - began, error
            self.time_s += 0.05
        return None


def taken(holder: Any, token: int = 1) -> LeaseTaken:
    return LeaseTaken(release=NAME, token=token, holder=holder)


def test_a_driver_that_died_and_that_nobody_starts_is_said_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Watch(monkeypatch, taken(DEAD)).says(60)
    assert found is not None and found[0] < 8
    assert f"process {DEAD.pid} on {DEAD.host}, has died, and no supervisor starts it again" in found[1].what
    assert f"switchyard start {NAME} --execute" in found[1].fix


def test_a_driver_that_has_ended_by_itself_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Watch(monkeypatch, taken(MINE), LeaseEnded(release=NAME, token=1)).says(60)
    assert found is not None and "its driver has stopped" in found[1].what


def test_a_release_that_failed_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Watch(monkeypatch, taken(DEAD), StateSet(release=NAME, state="failed", reason="out of heap")).says(60)
    assert found is not None and found[0] < 1
    assert found[1].what == f"{NAME} has failed: out of heap"


def test_one_that_lives_is_waited_for_and_so_is_one_elsewhere_that_is_heard_or_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Watch(monkeypatch, taken(MINE)).says(60) is None
    assert Watch(monkeypatch, taken(ELSEWHERE).model_copy(update={"at_ms": now_ms()})).says(60) is None


def test_one_elsewhere_that_is_silent_is_said_once_that_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch, taken(ELSEWHERE))
    found = watch.says(60)
    assert found is not None and 5 <= found[0] < 8
    assert "has sent no heartbeat for 15 s, and no supervisor starts it again" in found[1].what


def test_a_supervised_one_is_waited_for_and_one_that_is_to_stop_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch, taken(DEAD))
    watch.supervised = True
    assert watch.says(60) is None
    # the supervisor ends: from then on nobody starts it
    watch.supervised = False
    found = watch.says(60)
    assert found is not None and 3 < found[0] < 8
    watch = Watch(monkeypatch, taken(DEAD), WantedSet(release=NAME, wanted="stopped"))
    watch.supervised = True
    assert watch.says(60) is not None


def test_one_that_is_being_started_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch, taken(DEAD))
    watch.processes = [SimpleNamespace(release="sums.v2"), SimpleNamespace(release=NAME)]
    assert watch.says(60) is None
    # it has the lease
    watch.processes = []
    watch.log.entries.append(taken(MINE, 2))
    assert watch.says(60) is None
    watch.processes = [SimpleNamespace(release="sums.v2")]
    watch.log.entries.append(taken(DEAD, 3))
    assert watch.says(60) is not None


def test_a_promotion_that_waits_for_a_dead_driver_ends_within_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    time_s = 0.0

    def nothing_comes(timeout_s: float) -> None:
        nonlocal time_s
        time_s += timeout_s

    plan = Plan(id="promote-1", operation=Kind.PROMOTE, releases=(NAME,), stages=())
    opened = Opened(id=plan.id, name=plan.operation, releases=(NAME,), alias="sums", deadline_ms=2**61)
    monkeypatch.setattr(module, "is_supervised", lambda _: False)
    monkeypatch.setattr(module, "running_with", lambda _: [])
    monkeypatch.setattr(
        work, "ProgressTail", lambda *_: SimpleNamespace(poll=nothing_comes, newest=None, close=lambda: None)
    )
    waiting = work.Work(context_of(Log(*RUNNING, opened, taken(DEAD)), monotonic=lambda: time_s), plan)
    with pytest.raises(SwitchyardError, match="has died, and no supervisor starts it again"):
        waiting.await_progress(NAME, 60, "no boundary is flagged", lambda _: False)
    assert time_s < 10


@pytest.mark.parametrize(("operation", "fences"), [(Kind.ROLLBACK, True), (Kind.PROMOTE, False)])
def test_a_rollback_from_one_that_flags_nothing_names_the_way_without_it(
    monkeypatch: pytest.MonkeyPatch, operation: Kind, fences: bool
) -> None:
    """It lives, and its batch fails again and again, or it hangs."""
    time_s = 0.0

    def nothing_comes(timeout_s: float) -> None:
        nonlocal time_s
        time_s += timeout_s

    plan = Plan(id="op-1", operation=operation, releases=(NAME,), stages=())
    mark = MarkOrdered(id=plan.id, release=NAME, past=POSITION, switch=2, alias="sums", deadline_ms=2**61)
    opened = Opened(id=plan.id, name=operation, releases=(NAME,), alias="sums", deadline_ms=2**61)
    monkeypatch.setattr(
        work, "ProgressTail", lambda *_: SimpleNamespace(poll=nothing_comes, newest=None, close=lambda: None)
    )
    waiting = work.Work(context_of(Log(*RUNNING, opened, taken(MINE), mark), monotonic=lambda: time_s), plan)
    stage = FlagBoundary(release="sums.v2", other=NAME, switch=2, alias="sums", deadline_s=60)
    with pytest.raises(SwitchyardError, match=f"{NAME} has not flagged a boundary within 60 s") as error:
        flag_boundary(waiting, stage)
    assert ("`switchyard rollback sums --fence --execute`" in error.value.fix) is fences
    assert f"`switchyard status {NAME}`" in error.value.fix


# -- who supervises


def test_a_supervisor_is_present_until_it_goes_or_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS.model_copy(update={"state_dir": tmp_path})
    assert not is_supervised(settings)
    say_gone(settings)
    say_present(settings)
    assert is_supervised(settings)
    [path] = (tmp_path / "run" / "supervisors").iterdir()
    os.utime(path, (1, 1))
    assert not is_supervised(settings)
    say_present(settings)
    assert is_supervised(settings)
    say_gone(settings)
    assert not is_supervised(settings)


def test_a_supervisor_that_was_killed_is_not_present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS.model_copy(update={"state_dir": tmp_path})
    say_present(settings)
    monkeypatch.setattr(presence.ProcessRef, "alive", lambda _: False)
    assert not is_supervised(settings)
