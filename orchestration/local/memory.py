"""How many Spark sessions of Dagster's runs fit beside the streams: `python -m orchestration.local.memory` prints it."""

from __future__ import annotations

from pathlib import Path

from pipelines.settings import Settings, get_settings

# beside its heap: the JVM's own memory, and a Python process with Dagster, Spark and Great Expectations in it
_BESIDE_HEAP_MIB = 1024
# two versions of an app, side by side
_DRIVERS = 2
# beside the broker's heap; its files are in the system's cache, which gives way
_BESIDE_BROKER_MIB = 512
# more would take the streams' processor time; orchestration/local/dagster.yaml counts on it
_MOST = 3


def session_mib(settings: Settings) -> int:
    """What a driver takes, or a command with a Spark session, in MiB: RocksDB takes a quarter of the heap on top of it."""
    heap_mib = settings.driver_heap_mb
    return heap_mib + heap_mib // 4 + _BESIDE_HEAP_MIB


def spark_runs(memory_mib: int, settings: Settings) -> int:
    """The limit of the pool `spark` on a machine with this much memory: from 1 to 3.

    What the embedded broker and two drivers take is left to them, and one session to the runs that never wait for the
    pool: promote and watch. With too little memory for that, it is 1.
    """
    broker_mib = settings.broker_heap_mb + _BESIDE_BROKER_MIB if settings.embedded else 0
    each_mib = session_mib(settings)
    sessions = (memory_mib - broker_mib - _DRIVERS * each_mib) // each_mib
    return min(_MOST, max(1, sessions - 1))


def machine_mib(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory of this machine in MiB, or of this container if that has less."""
    total = next(row for row in (proc / "meminfo").read_text().splitlines() if row.startswith("MemTotal:"))
    kib = int(total.split()[1])
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limit = (cgroup / name).read_text().strip()
        except OSError:
            # there is no such limit here
            continue
        if limit.isdecimal():
            kib = min(kib, int(limit) // 1024)
    return kib // 1024


if __name__ == "__main__":
    print(spark_runs(machine_mib(), get_settings()))
