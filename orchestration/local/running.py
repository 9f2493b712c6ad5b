"""What runs with a state folder: drivers, commands such as `produce`, Dagster.

There is no list of these processes, because a driver outlives the process that started it. They are recognized by their
environment and by what they run. `python -m orchestration.local.running DIR...` ends them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestration.local.process import POLL_S, ProcessRef
from pipelines.processes import parent

_VARIABLE = "SWITCHYARD_STATE_DIR"
_RELEASE = "SWITCHYARD_RELEASE"
# the second one started drivers before this version
_DRIVERS = ("pipelines.engine.start", "pipelines.engine.driver")
# the last argument of Spark's JVM, and the program of its Python workers
_JVM, _WORKERS = "pyspark-shell", "pipelines.engine.python_daemon"
_PROGRAMS = (*_DRIVERS, "orchestration.cli", "orchestration.defs.guarded", "switchyard", "dagster", "dagster-daemon", "dagster-webserver",
             "dagster_webserver", "dagster._daemon")  # fmt: skip
# Dagster's supervisor may start a driver again before it has ended itself
_ROUNDS = 3
_KILLED_S = 5.0
# a command may start another driver while the others stop
_LOOK_S = 1.0
# a JVM ends when its parent is gone, after Spark's own clean-up
_FOLLOW_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A process and what it runs. `release`: only for a driver. `cluster`: None for the embedded broker."""

    process: ProcessRef
    program: str
    release: str | None
    cluster: str | None

    def __str__(self) -> str:
        what = self.program if self.release is None else f"the driver of {self.release}"
        return f"{what} (process {self.process.pid})"


def running_with(state_dir: Path) -> list[Running]:
    """The processes that run with `state_dir`, except this one. Processes of other users can't be seen."""
    found = []
    for pid in _pids():
        arguments, environment = _words(pid, "cmdline"), dict(_pairs(_words(pid, "environ")))
        program, rest = _program(arguments)
        # a Dagster run is forked from a code server, and its command shows only that
        known = program in _PROGRAMS or ("--multiprocessing-fork" in arguments and "DAGSTER_HOME" in environment)
        if not known or _state_dir(pid, environment) != state_dir.resolve():
            continue
        process = ProcessRef.of(pid)
        if process is None:
            continue
        release = rest[0] if program in _DRIVERS and rest else None
        cluster = environment.get("SWITCHYARD_BOOTSTRAP_SERVERS") or None
        name = program if program in _PROGRAMS else "a run of dagster"
        found.append(Running(process=process, program=name, release=release, cluster=cluster))
    return found


def processes_of(release: str, state_dir: Path) -> list[ProcessRef]:
    """The processes of this host that may write for `release`: its drivers with `state_dir`, their JVMs and Python workers.

    A JVM outlives a driver that was killed by a moment. A driver is also here if it froze, or has just begun.
    """
    found = [each.process for each in running_with(state_dir) if each.release == release]
    for pid in _pids():
        arguments = _words(pid, "cmdline")
        # no other process, although someone may have set the variable in a shell
        if arguments[-1:] != [_JVM] and _program(arguments)[0] != _WORKERS:
            continue
        # a driver sets it for what it starts
        environment = dict(_pairs(_words(pid, "environ")))
        if environment.get(_RELEASE) == release and _state_dir(pid, environment) == state_dir.resolve():
            process = ProcessRef.of(pid)
            found += [process] if process is not None else []
    return found


def drivers_of_embedded(state_dir: Path) -> list[str]:
    """The names of the releases whose drivers run with `state_dir` and its embedded broker."""
    found = running_with(state_dir)
    return sorted({each.release for each in found if each.release is not None and each.cluster is None})


def stop_drivers(state_dir: Path, *, within_s: float) -> list[Running]:
    """Has the drivers that run with `state_dir` stop at a boundary. Returns those that still run after `within_s` seconds.

    A driver that a command starts in the meantime is told to stop, too.
    """
    deadline = time.monotonic() + within_s
    told: set[ProcessRef] = set()
    while True:
        found = [each for each in running_with(state_dir) if each.release is not None]
        left_s = deadline - time.monotonic()
        if not found or left_s <= 0:
            return found
        processes = [each.process for each in found]
        # not the process group: a driver's JVM must live until the driver has stopped
        _signal([each for each in processes if each not in told], signal.SIGTERM, 0)
        told.update(processes)
        _ended(processes, min(left_s, _LOOK_S))


def end_all(state_dirs: Iterable[Path], *, wait_s: float = 20.0) -> list[Running]:
    """Ends what runs with these state folders, and kills it after `wait_s` seconds. A driver stops at a boundary,
    because the broker still runs. Returns what it ended. Also waits for their children, such as a driver's JVM, which
    may write to the state folder until they end.
    """
    ended: list[Running] = []
    wanted = list(state_dirs)
    for _ in range(_ROUNDS):
        found = [each for state_dir in wanted for each in running_with(state_dir)]
        if not found:
            break
        ended += found
        processes = [each.process for each in found]
        theirs = _descendants(processes)
        # not the process group: a driver's JVM must live until the driver has stopped
        if not _signal(processes, signal.SIGTERM, wait_s):
            _signal(processes, signal.SIGKILL, _KILLED_S)
        if not _ended(theirs, _FOLLOW_S):
            _signal(theirs, signal.SIGKILL, _KILLED_S)
    return ended


def _signal(processes: Sequence[ProcessRef], number: signal.Signals, wait_s: float) -> bool:
    """Signals each process that is alive. Returns whether all end in time."""
    for process in processes:
        if process.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
    return _ended(processes, wait_s)


def _ended(processes: Sequence[ProcessRef], wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while any(process.alive() for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _descendants(processes: Iterable[ProcessRef]) -> list[ProcessRef]:
    """The children of these processes, and their children."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            above = parent(pid)
            if above is not None:
                children.setdefault(above, []).append(pid)
    left, found = [process.pid for process in processes], []
    while left:
        below = children.get(left.pop(), [])
        left += below
        found += [process for pid in below if (process := ProcessRef.of(pid)) is not None]
    return found


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and int(path.name) != os.getpid()]


def _words(pid: int, file: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
    except OSError:
        # has ended in the meantime, or belongs to another user
        return []


def _pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, sign, value = line.partition("=")
        if sign:
            yield name, value


def _program(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The module or script that a Python process runs, and its arguments; "" for any other process.

    A process that only has such a word in its command does not count, for example an editor or `tail -f dagster.log`.
    """
    if len(arguments) < 2 or not Path(arguments[0]).name.startswith("python"):
        return "", ()
    at = arguments.index("-m") + 1 if "-m" in arguments[:-1] else 1
    return Path(arguments[at]).name, arguments[at + 1 :]


def _state_dir(pid: int, environment: dict[str, str]) -> Path | None:
    """The state folder of a process, as its settings find it: relative to where it runs; by default `.switchyard`
    there.
    """
    try:
        folder = Path(environment.get(_VARIABLE) or ".switchyard").expanduser()
        return Path(os.readlink(f"/proc/{pid}/cwd"), folder).resolve()
    except OSError:
        return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends what runs with the given state folders, and prints what it ended."""
    for each in end_all([Path(name) for name in (sys.argv[1:] if arguments is None else arguments)]):
        print(f"ended {each}")


if __name__ == "__main__":
    main()
