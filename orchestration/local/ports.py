"""Ports for short-lived brokers. Each process gets its own, even if many ask at the same time."""

from __future__ import annotations

import fcntl
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from orchestration.local.preflight import check_port
from pipelines.errors import SwitchyardError

# below 32768, where Linux's ports for outgoing connections start: such a connection could take a broker's port while
# the broker restarts
RANGE = range(20_000, 32_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """`count` ports in a row from `port` on. No other claim on this machine gets them until this one ends."""

    port: int
    count: int
    _locks: tuple[int, ...]

    def release(self) -> None:
        """Ends the claim. It also ends with the process."""
        for lock in self._locks:
            os.close(lock)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def claim(count: int = 2, among: range = RANGE) -> Claim:
    """Claims `count` free ports in a row. A broker takes two: its own, and the next one for its controller.

    A lock file per port keeps other processes away from a port between the check and the start of the broker. The
    search starts at a port that depends on the process id, so that few processes collide. Raises SwitchyardError if no
    ports are free.
    """
    offset = os.getpid() * count % len(among)
    for port in (*among[offset::count], *among[:offset:count]):
        locks = _locked(range(port, port + count))
        if locks is None:
            continue
        if not any(check_port(each) for each in range(port, port + count)):
            return Claim(port=port, count=count, _locks=locks)
        for lock in locks:
            os.close(lock)
    raise SwitchyardError(
        f"no {count} ports in a row are free between {among.start} and {among.stop - 1}",
        fix="stop what listens there: `ss -ltnp` lists it",
    )


def _locked(ports: range) -> tuple[int, ...] | None:
    """Locks on all of `ports`; None if another process has one of them."""
    folder = Path(tempfile.gettempdir()) / f"switchyard-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    locks: list[int] = []
    for port in ports:
        # not inherited: a child that lives on would keep the port
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        locks.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for each in locks:
                os.close(each)
            return None
    return tuple(locks)
