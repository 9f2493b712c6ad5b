"""A process that outlives its parent, identified so that a reused pid is never taken for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.errors import SwitchyardError
from pipelines.model.entries import Holder
from pipelines.processes import boot_id, rss_bytes, start_ticks

POLL_S = 0.05
# a killed JVM with many GiB first gives back its memory
_DEATH_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessRef:
    """A process by its pid and its start time. The pid alone may belong to another process by now."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessRef | None:
        """The process that has `pid` now; None if there is none."""
        started = _started(pid)
        return None if started is None else cls(pid=pid, started=started)

    @classmethod
    def of_holder(cls, holder: Holder) -> ProcessRef:
        """The process that took a lease on this host, alive or not."""
        return cls(pid=holder.pid, started=_stamp(holder.boot_id, holder.started))

    @classmethod
    def read(cls, path: Path) -> ProcessRef | None:
        """The process that `write` recorded in `path`, alive or not; None without a readable file."""
        try:
            fields = json.loads(path.read_text())
            return cls(pid=int(fields["pid"]), started=str(fields["started"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def write(self, path: Path) -> None:
        """Records this process in `path`, atomically."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)

    def alive(self) -> bool:
        """Whether this very process runs. A zombie does not."""
        # reaps it if it is our child; otherwise it would stay a zombie as long as we live
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return _started(self.pid) == self.started

    def terminate(self, timeout_s: float) -> bool:
        """Ends its process group: SIGTERM, then SIGKILL after `timeout_s` seconds. Returns whether SIGTERM was enough.

        Does nothing to another process that has its pid by now. Raises SwitchyardError if it does not end after
        SIGKILL.
        """
        if not self.alive():
            return True
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        # looks at the process before the clock: after a suspend of the machine, the process is not late
        while self.alive():
            if time.monotonic() >= deadline:
                self._signal(signal.SIGKILL)
                self._await_death()
                return False
            time.sleep(POLL_S)
        return True

    def _await_death(self) -> None:
        deadline = time.monotonic() + _DEATH_S
        while self.alive():
            if time.monotonic() >= deadline:
                raise SwitchyardError(
                    f"process {self.pid} was killed but has not ended within {_DEATH_S:g} s: it waits in the kernel, for example "
                    "for a disk or a network file system that does not answer",
                    fix=f"`ps -o pid,stat,wchan:32,args -p {self.pid}` shows what it waits for; fix that, or reboot this host, then run the same command again",
                )
            time.sleep(POLL_S)

    def kill(self) -> None:
        """Kills its process group, even if it is stopped. Does nothing to another process that has its pid by now."""
        if self.alive():
            self._signal(signal.SIGKILL)

    def resident_bytes(self) -> int | None:
        """Its resident memory in bytes; None: unknown."""
        found = rss_bytes(self.pid)
        return found if self.alive() else None

    def uptime_s(self) -> float | None:
        """How long it has been running, in seconds; None: it has ended."""
        if not self.alive():
            return None
        since_boot_s = float(Path("/proc/uptime").read_text().split()[0])
        return since_boot_s - int(self.started.rpartition(":")[2]) / os.sysconf("SC_CLK_TCK")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            # it leads a group of its own, unless it was not started by us
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)


def spawn(command: list[str], output: Path, env: dict[str, str]) -> ProcessRef:
    """Starts `command` in a session of its own, so that it outlives the terminal and leads its process group.
    Its output goes to `output`, which is emptied first.
    """
    writing = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # not Popen, which warns when it is dropped while the process runs
        pid = os.posix_spawn(
            command[0],
            command,
            env,
            setsid=True,
            # a background job of a shell ignores SIGINT, and under Dagster SIGTERM too; a child would inherit that
            setsigdef=(signal.SIGINT, signal.SIGTERM),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writing, 1),
                (os.POSIX_SPAWN_DUP2, writing, 2),
            ],
        )
    finally:
        os.close(writing)
    # a process that has already ended keeps its pid until it is reaped, but has no start time to read
    return ProcessRef.of(pid) or ProcessRef(pid=pid, started="ended")


def _started(pid: int) -> str | None:
    """The boot and the start time of the process that has `pid` now; None if there is none."""
    ticks = start_ticks(pid)
    return None if ticks is None else _stamp(boot_id(), ticks)


def _stamp(boot: str, ticks: int) -> str:
    return f"{boot}:{ticks}"
