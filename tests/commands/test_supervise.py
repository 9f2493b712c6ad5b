"""`switchyard supervise`: what it does with the drivers of its host at its own end."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestration.commands import supervise as command
from orchestration.local import running
from orchestration.local.process import ProcessRef
from orchestration.local.running import Running
from orchestration.operations.supervising import turns
from pipelines.errors import BadUsage, SwitchyardError
from pipelines.settings import Settings

DRIVER = Running(
    process=ProcessRef(pid=12, started="boot:1"),
    program="pipelines.engine.start",
    release="word-count.v1",
    cluster=None,
)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the command did. Its turns are over at once."""
    found: list[str] = []

    def stopped(state_dir: Path, *, within_s: float) -> list[Running]:
        found.append(f"stop {state_dir.name} within {within_s:g} s")
        return [] if within_s > 5 else [DRIVER]

    monkeypatch.setattr(command, "load_settings", lambda: Settings(state_dir=tmp_path / "state"))
    monkeypatch.setattr(turns, "take_turns", lambda *_, **__: found.append("turns"))
    monkeypatch.setattr(running, "stop_drivers", stopped)
    return found


def test_drivers_keep_running_by_default(done: list[str]) -> None:
    command.supervise()
    assert done == ["turns"]


def test_they_stop_after_the_last_turn_if_asked(done: list[str]) -> None:
    command.supervise(stop_drivers="150s")
    assert done == ["turns", "stop state within 150 s"]


def test_those_that_still_run_then_are_named(done: list[str]) -> None:
    with pytest.raises(SwitchyardError, match=r"the driver of word-count\.v1 \(process 12\)") as error:
        command.supervise(stop_drivers="5s")
    assert error.value.exit_code == 1 and "--stop-drivers" in error.value.fix


def test_no_time_at_all_is_refused_before_the_first_turn(done: list[str]) -> None:
    with pytest.raises(BadUsage):
        command.supervise(stop_drivers="0")
    assert done == []
