"""Ports for short-lived brokers: each process that asks gets its own, however many ask at once."""

from __future__ import annotations

import fcntl
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from orchestration.local.preflight import check_port
from pipelines.errors import SwitchyardError

# below 32768, where Linux takes the ports of outgoing connections from: one of those could come to hold a broker's port
# while the broker restarts
RANGE = range(20_000, 32_000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """`count` ports in a row from `port` on, that no other claim on this machine has until this one ends."""

    port: int
    count: int
    _locks: tuple[int, ...]

    def release(self) -> None:
        """Ends the claim. The end of the process ends it, too."""
        for lock in self._locks:
            os.close(lock)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def claim(count: int = 2, among: range = RANGE) -> Claim:
    """Claims `count` free ports in a row. A broker takes two: its own, and the next one for its controller.

    A lock on a file per port keeps two processes from the same port between the look and the listening. The first look is
    at a place that depends on the process, so that few collide. Raises SwitchyardError where no port is free.
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
        fix="end what listens there: `ss -ltnp` lists it",
    )


def _locked(ports: range) -> tuple[int, ...] | None:
    """Locks on all of `ports`; None where another process has one of them."""
    folder = Path(tempfile.gettempdir()) / f"switchyard-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    locks: list[int] = []
    for port in ports:
        # inherited by nobody: a child that lives on would keep the port
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        locks.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for each in locks:
                os.close(each)
            return None
    return tuple(locks)
