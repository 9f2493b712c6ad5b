"""Who holds a lease, by what is known: unknown is not dead."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from pipelines.engine import lease
from pipelines.engine.lease import held_by, is_alive, this_process
from pipelines.errors import Refused
from pipelines.kafka.registry import Registry
from pipelines.model.entries import Entry, Holder, LeaseEnded, LeaseTaken, ReleaseSpec, Staged, StateSet
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import Release
from pipelines.settings import Settings
from tests.operations.builders import Log

NOW_MS = 1_000_000_000
SETTINGS = Settings(lease_timeout_s=15, boot_timeout_s=120)
ELSEWHERE = Holder(host="another-host", boot_id="boot", pid=1, started=1)

SPEC = ReleaseSpec(
    release="sums.v1", app="sums", version=1, module="sums", code_digest="0" * 64, settings={}, inputs={}, table=True,
    key=("word",), partitions=1, schema_ddl="word string", suite=None, watermark=None, comparable="exact", change="first",
)  # fmt: skip


def release(holder: Holder, *, token: int = 3, age_s: float = 0.0, ended: bool = False) -> Release:
    held = LeaseTaken(release="sums.v1", token=token, holder=holder, at_ms=NOW_MS - int(age_s * 1000))
    return Release(spec=SPEC, token=token, lease=held, lease_ended=ended)


def beat(age_s: float, *, token: int = 3, state: str = "running") -> Heartbeat:
    at_ms = NOW_MS - int(age_s * 1000)
    return Heartbeat(release="sums.v1", generation=1, token=token, host="h", pid=1, at_ms=at_ms, state=state)


def holder(found: Release, heard: Heartbeat | None) -> str | None:
    return held_by(found, heard, SETTINGS, at_ms=NOW_MS)


def dead() -> Holder:
    """A process of this host that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    mine = this_process(SETTINGS)
    process.wait()
    return mine.model_copy(update={"pid": process.pid})


def test_nobody_holds_a_lease_that_was_never_taken_or_has_ended() -> None:
    assert holder(Release(spec=SPEC), None) is None
    assert holder(release(this_process(SETTINGS), ended=True), beat(0.1)) is None


def test_a_process_proven_dead_holds_nothing_however_fresh_its_heartbeat() -> None:
    assert holder(release(dead()), beat(0.1)) is None
    assert holder(release(dead()), None) is None


def test_a_pid_that_was_given_to_another_process_is_not_the_holder() -> None:
    mine = this_process(SETTINGS)
    assert is_alive(mine, SETTINGS) is True
    assert is_alive(mine.model_copy(update={"started": mine.started - 1}), SETTINGS) is False
    assert is_alive(mine.model_copy(update={"boot_id": "before the reboot"}), SETTINGS) is False


def test_a_process_that_this_one_can_not_look_at_is_not_dead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine = this_process(SETTINGS)
    monkeypatch.setattr(Path, "read_text", too_many_files)
    assert is_alive(mine, SETTINGS) is None
    assert f"whether process {mine.pid} runs is unknown" in caplog.text


def too_many_files(path: Path, *_: object, **__: object) -> str:
    raise OSError(errno.EMFILE, "Too many open files", str(path))


def test_a_process_that_ended_and_was_not_waited_for_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
    mine = this_process(SETTINGS).model_copy(update={"pid": process.pid, "started": started})
    assert is_alive(mine, SETTINGS) is True
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert is_alive(mine, SETTINGS) is False
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def test_a_process_on_another_host_is_neither_alive_nor_dead() -> None:
    assert is_alive(ELSEWHERE, SETTINGS) is None


@pytest.mark.parametrize(("age_s", "held"), [(0.1, True), (14.9, True), (15.0, False), (500.0, False)])
def test_a_heartbeat_counts_while_it_is_young(age_s: float, held: bool) -> None:
    for process in (ELSEWHERE, this_process(SETTINGS)):
        found = holder(release(process, age_s=1000), beat(age_s))
        assert (found is not None) is held
        if found:
            assert f"process {process.pid} on {process.host} (token 3)" in found


@pytest.mark.parametrize(("age_s", "held"), [(1.0, True), (119.0, True), (120.0, False)])
def test_a_boot_has_time_until_its_first_heartbeat(age_s: float, held: bool) -> None:
    assert (holder(release(ELSEWHERE, age_s=age_s), None) is not None) is held


@pytest.mark.parametrize("ahead_s", [15.0, 500.0, 4e9])
def test_a_heartbeat_of_a_clock_that_is_ahead_holds_no_longer_than_one_that_is_past(ahead_s: float) -> None:
    assert holder(release(ELSEWHERE, age_s=1000), beat(-ahead_s)) is None
    assert "last heartbeat 0.0 s ago" in (holder(release(ELSEWHERE, age_s=1000), beat(-14.9)) or "")


@pytest.mark.parametrize("ahead_s", [120.0, 500.0, 4e9])
def test_a_lease_from_the_future_is_not_held_until_then(ahead_s: float) -> None:
    assert holder(release(ELSEWHERE, age_s=-ahead_s), None) is None
    assert "starting for 0 s" in (holder(release(ELSEWHERE, age_s=-119.0), None) or "")
    # its holder still sends heartbeats
    assert holder(release(ELSEWHERE, age_s=-ahead_s), beat(1.0)) is not None


def test_a_heartbeat_of_an_older_token_says_nothing_of_the_new_holder() -> None:
    assert "starting for 5 s" in (holder(release(ELSEWHERE, age_s=5), beat(0.1, token=2)) or "")
    assert holder(release(ELSEWHERE, age_s=500), beat(0.1, token=2)) is None


class Known(Log):
    """A registry of this process alone, with settings."""

    settings = SETTINGS


def taken(monkeypatch: pytest.MonkeyPatch, *entries: Entry, heard: Heartbeat | None, force: bool = False) -> int:
    """The token of `sums.v1` that this process gets if the registry holds `entries`."""
    monkeypatch.setattr(lease, "latest_heartbeats", lambda _: {"sums.v1": heard} if heard else {})
    monkeypatch.setattr(lease, "now_ms", lambda: NOW_MS)
    log = Known(Staged(spec=SPEC), *entries)
    token = lease.take_lease(cast(Registry, log), "sums.v1", force=force).token
    assert log.known.releases["sums.v1"].token == token
    return token


HELD = LeaseTaken(release="sums.v1", token=3, holder=ELSEWHERE, at_ms=NOW_MS - 500_000)


def test_a_held_lease_is_refused_and_taken_only_with_force(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match=r"sums\.v1 is run by process 1 on another-host \(token 3\)") as refused:
        taken(monkeypatch, HELD, heard=beat(1.0))
    assert "`switchyard stop sums.v1 --execute`" in refused.value.fix
    assert taken(monkeypatch, HELD, heard=beat(1.0), force=True) == 4


def test_a_lease_of_one_who_is_silent_or_has_ended_is_taken_with_the_next_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert taken(monkeypatch, heard=None) == 1
    assert taken(monkeypatch, HELD, heard=beat(20.0)) == 4
    assert taken(monkeypatch, HELD, LeaseEnded(release="sums.v1", token=3), heard=beat(1.0)) == 4


def test_a_lease_from_the_future_is_taken_with_the_next_token(monkeypatch: pytest.MonkeyPatch) -> None:
    forged = HELD.model_copy(update={"at_ms": 2**53 - 1})
    assert taken(monkeypatch, forged, heard=None) == 4
    with pytest.raises(Refused, match="is run by process 1"):
        taken(monkeypatch, forged, heard=beat(1.0))


def test_nobody_runs_a_release_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="is retired"):
        taken(monkeypatch, StateSet(release="sums.v1", state="retired"), heard=None, force=True)


def test_this_process_names_itself() -> None:
    assert this_process(SETTINGS).pid == os.getpid()
    assert this_process(SETTINGS).started > 0
