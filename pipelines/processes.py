"""What Linux says of a process, in /proc (proc(5))."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

_UNKNOWN = f"unknown to process {uuid.uuid4().hex}"


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it has ended. With `boot_id`, it tells a process from
    another that has its pid. Raises OSError if Linux doesn't say.
    """
    fields = _stat(pid)
    # a zombie has ended; its parent just hasn't collected it
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def parent(pid: int) -> int | None:
    """The pid of the process that started it; None if there is no such process. Raises OSError if Linux doesn't say."""
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def rss_bytes(pid: int) -> int | None:
    """The resident memory of a process; None: it is unknown, or the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    # a zombie has no memory
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), None)


def boot_id() -> str:
    """The id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def namespaces() -> str:
    """The namespaces in which this process sees pids and start times. A process of a container has others, on the same
    boot. If /proc doesn't say them, or shows another process as this one, what this returns is equal to that of no other
    process.
    """
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return _UNKNOWN
        found = [os.readlink("/proc/self/ns/pid")]
        # a time namespace moves start times; Linux before 5.6 has none
        if os.path.lexists(time := "/proc/self/ns/time"):
            found.append(os.readlink(time))
    except OSError:
        return _UNKNOWN
    return " ".join(found)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat, from the third on, the state."""
    try:
        # the command, the second field, is in brackets and may contain anything
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
