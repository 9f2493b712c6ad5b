"""Who holds a lease and who carries out an operation, by what is known: unknown is not dead."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipelines.engine import lease
from pipelines.engine.lease import carried_by, held_by, is_alive, this_process
from pipelines.errors import Refused
from pipelines.kafka.registry import Registry
from pipelines.model.entries import Entry, Holder, LeaseEnded, LeaseTaken, Opened, ReleaseSpec, Staged, StateSet
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import Operation, Release
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
    assert is_alive(mine) is True
    assert is_alive(mine.model_copy(update={"started": mine.started - 1})) is False


@pytest.mark.parametrize(
    "change", [{"boot_id": "another"}, {"namespaces": "pid:[1]"}, {"boot_id": "another", "pid": 1}]
)
def test_an_equal_name_of_the_host_proves_no_death(change: dict[str, Any]) -> None:
    """Clones of a machine and containers may share the name, and a container the boot, too."""
    mine = this_process(SETTINGS)
    there = mine.model_copy(update={"started": mine.started - 1, **change})
    assert there.host == mine.host and is_alive(there) is None
    # while it is heard, nobody takes its lease; when it is not, as after a reboot, anyone may
    assert holder(release(there, age_s=1000), beat(14.9)) is not None
    assert holder(release(there, age_s=1000), beat(15.0)) is None


def test_another_name_of_the_host_proves_nothing_either() -> None:
    mine = this_process(SETTINGS).model_copy(update={"host": "renamed"})
    assert is_alive(mine) is True
    assert is_alive(mine.model_copy(update={"started": mine.started - 1})) is False


def test_an_entry_of_an_earlier_build_says_who_lives_and_not_who_is_dead() -> None:
    mine = this_process(SETTINGS).model_copy(update={"namespaces": ""})
    assert is_alive(mine) is True
    assert is_alive(mine.model_copy(update={"started": mine.started - 1})) is None
    assert is_alive(mine.model_copy(update={"boot_id": "another"})) is None


@contextmanager
def in_a_container(code: str) -> Iterator[subprocess.Popen[str]]:
    """A process with pids of its own on the same kernel, as in a container. It runs `code` and waits for its input's end."""
    command = ["unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c"]
    with subprocess.Popen([*command, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


SAYS_WHO = """
import json, sys
from pipelines.engine.lease import is_alive, this_process
from pipelines.model.entries import Holder
from pipelines.settings import Settings
print(this_process(Settings()).model_dump_json(), flush=True)
print(json.dumps([is_alive(Holder.model_validate_json(line)) for line in sys.stdin]), flush=True)
"""


def test_processes_of_two_containers_on_one_kernel_can_not_judge_each_other() -> None:
    mine, ended = this_process(SETTINGS), dead()
    with in_a_container(SAYS_WHO) as process:
        assert process.stdin is not None and process.stdout is not None
        there = Holder.model_validate_json(process.stdout.readline())
        # nothing else tells the two apart: its pid is that of another process here
        assert (there.host, there.boot_id) == (mine.host, mine.boot_id) and there.namespaces != mine.namespaces
        assert is_alive(there) is None
        process.stdin.write("\n".join(each.model_dump_json() for each in (mine, ended, there)))
        process.stdin.close()
        assert json.loads(process.stdout.readline()) == [None, None, True]
    assert process.returncode == 0
    assert is_alive(there) is None


def test_a_process_that_this_one_can_not_look_at_is_not_dead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine = this_process(SETTINGS)
    monkeypatch.setattr(Path, "read_text", too_many_files)
    assert is_alive(mine) is None
    assert f"whether process {mine.pid} runs is unknown" in caplog.text


def too_many_files(path: Path, *_: object, **__: object) -> str:
    raise OSError(errno.EMFILE, "Too many open files", str(path))


def test_a_process_that_ended_and_was_not_waited_for_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
    mine = this_process(SETTINGS).model_copy(update={"pid": process.pid, "started": started})
    assert is_alive(mine) is True
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert is_alive(mine) is False
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def test_a_process_on_another_host_is_neither_alive_nor_dead() -> None:
    assert is_alive(ELSEWHERE) is None


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


# -- who carries out an operation


def carrier(holder: Holder | None, *, carried_s: float, sign_s: float | None) -> str | None:
    """Who carries out an operation that was taken `carried_s` ago, with a sign of life `sign_s` ago."""
    opened = Opened(id="reset-1", name="reset", releases=("sums.v1",), deadline_ms=2**60)
    operation = Operation(opened=opened, carrier=holder, carried_ms=NOW_MS - int(carried_s * 1000))
    sign_ms = None if sign_s is None else NOW_MS - int(sign_s * 1000)
    return carried_by(operation, sign_ms, SETTINGS, at_ms=NOW_MS)


@pytest.mark.parametrize(
    ("carried_s", "sign_s", "said"),
    [(3, None, "3.0"), (1000, 2, "2.0"), (1000, 14.9, "14.9"), (16, None, None), (1000, 15, None), (1000, None, None),
     (-1000, -1000, None), (-1000, 1, "1.0")],
)  # fmt: skip
def test_one_that_may_live_carries_it_out_while_it_gives_signs(
    carried_s: float, sign_s: float | None, said: str | None
) -> None:
    found = carrier(ELSEWHERE, carried_s=carried_s, sign_s=sign_s)
    assert found == (said and f"process 1 on another-host (last sign of life {said} s ago)")


def test_one_that_is_proven_alive_or_dead_needs_no_sign() -> None:
    assert carrier(this_process(SETTINGS), carried_s=1000, sign_s=None) is not None
    assert carrier(dead(), carried_s=1, sign_s=1) is None
    assert carrier(None, carried_s=1, sign_s=None) is None


class Known(Log):
    """A registry of this process alone, with settings."""

    settings = SETTINGS

    def now_ms(self) -> int:
        return NOW_MS


def taken(*entries: Entry, heard: Heartbeat | None, force: bool = False) -> int:
    """The token of `sums.v1` that this process gets if the registry holds `entries`."""
    log = Known(Staged(spec=SPEC), *entries)
    log.heartbeats = cast(Any, SimpleNamespace(latest=lambda: {"sums.v1": heard} if heard else {}))
    token = lease.take_lease(cast(Registry, log), "sums.v1", force=force).token
    assert log.known.releases["sums.v1"].token == token
    return token


HELD = LeaseTaken(release="sums.v1", token=3, holder=ELSEWHERE, at_ms=NOW_MS - 500_000)


def test_a_held_lease_is_refused_and_taken_only_with_force() -> None:
    with pytest.raises(Refused, match=r"sums\.v1 is run by process 1 on another-host \(token 3\)") as refused:
        taken(HELD, heard=beat(1.0))
    assert "`switchyard stop sums.v1 --execute`" in refused.value.fix
    assert taken(HELD, heard=beat(1.0), force=True) == 4


def test_a_lease_of_one_who_is_silent_or_has_ended_is_taken_with_the_next_token() -> None:
    assert taken(heard=None) == 1
    assert taken(HELD, heard=beat(20.0)) == 4
    assert taken(HELD, LeaseEnded(release="sums.v1", token=3), heard=beat(1.0)) == 4


def test_a_lease_from_the_future_is_taken_with_the_next_token() -> None:
    forged = HELD.model_copy(update={"at_ms": 2**53 - 1})
    assert taken(forged, heard=None) == 4
    with pytest.raises(Refused, match="is run by process 1"):
        taken(forged, heard=beat(1.0))


def test_nobody_runs_a_release_that_is_over() -> None:
    with pytest.raises(Refused, match="is retired"):
        taken(StateSet(release="sums.v1", state="retired"), heard=None, force=True)


def test_this_process_names_itself() -> None:
    assert this_process(SETTINGS).pid == os.getpid()
    assert this_process(SETTINGS).started > 0
