from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestration.local import process as module
from orchestration.local.process import ProcessRef, spawn
from pipelines.errors import SwitchyardError
from tests.shared.waiting import until

SLEEP = [sys.executable, "-S", "-c", "import time; print('ready', flush=True); time.sleep(600)"]
STUBBORN = [
    *(sys.executable, "-S", "-c"),
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


def started(command: list[str], tmp_path: Path) -> ProcessRef:
    process = spawn(command, tmp_path / "output", dict(os.environ))

    def ready() -> bool:
        assert process.alive()
        return "ready" in (tmp_path / "output").read_text()

    until("the process is not ready", ready, 60, poll_s=0.01)
    return process


def test_a_file_names_the_same_process_again(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    process = ProcessRef.of(child.pid)
    assert process is not None
    process.write(tmp_path / "pid")
    assert ProcessRef.read(tmp_path / "pid") == process
    assert process.alive()
    assert (process.resident_bytes() or 0) > 0
    assert process.uptime_s() is not None


def test_a_reused_pid_is_neither_alive_nor_ended(child: subprocess.Popen[bytes]) -> None:
    now = ProcessRef.of(child.pid)
    assert now is not None
    before = ProcessRef(pid=child.pid, started=f"{now.started}0")
    assert not before.alive()
    assert before.terminate(timeout_s=1.0)
    assert before.resident_bytes() is None
    assert now.alive()


def test_one_that_outlives_its_kill_is_not_waited_for_without_end(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = ProcessRef.of(child.pid)
    assert process is not None
    sent: list[signal.Signals] = []
    # as one does that waits in the kernel
    monkeypatch.setattr(ProcessRef, "_signal", lambda _, number: sent.append(number))
    monkeypatch.setattr(module, "_DEATH_S", 0.2)
    with pytest.raises(SwitchyardError, match=f"process {child.pid} was killed but has not ended[^~]*reboot this host"):
        process.terminate(timeout_s=0.1)
    assert sent == [signal.SIGTERM, signal.SIGKILL]


@pytest.mark.parametrize("content", ["", "123", "{}", '{"pid": "x", "started": "1"}', "not json"])
def test_an_unreadable_file_names_no_process(tmp_path: Path, content: str) -> None:
    (tmp_path / "pid").write_text(content)
    assert ProcessRef.read(tmp_path / "pid") is None
    assert ProcessRef.read(tmp_path / "not there") is None


def test_a_spawned_process_leads_a_session_of_its_own(tmp_path: Path) -> None:
    process = started(SLEEP, tmp_path)
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    assert process.terminate(timeout_s=60.0)
    assert not process.alive()
    assert process.uptime_s() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_starts_it_may_ignore_signals(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        process = started(SLEEP, tmp_path)
    finally:
        signal.signal(number, before)
    process._signal(number)
    try:
        until("the signal was ignored", lambda: not process.alive(), 30, poll_s=0.01)
    finally:
        process.terminate(timeout_s=0)


def test_one_that_can_not_be_looked_at_is_not_taken_for_dead(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ProcessRef.of(child.pid)
    assert found is not None

    def too_many_files(path: Path, *_: object, **__: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(Path, "read_text", too_many_files)
    for ask in (found.alive, found.kill):
        with pytest.raises(OSError, match="Too many open files"):
            ask()


def test_one_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    process = started(STUBBORN, tmp_path)
    assert process.terminate(timeout_s=0.1) is False
    assert not process.alive()


def test_one_that_was_not_waited_for_counts_as_ended(tmp_path: Path) -> None:
    process = started(SLEEP, tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    until("it is alive though it was killed", lambda: not process.alive(), 60, poll_s=0.01)
    assert ProcessRef.of(process.pid) is None
