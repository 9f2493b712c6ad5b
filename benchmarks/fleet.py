"""What idle releases of one app cost on one machine: memory and processor time of one, and of all."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.hydrating import cpu_s, processes_of
from benchmarks.latency import memory_mb
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.wait import wait_ready
from orchestration.sources import Options, produce, sources_for
from pipelines.model.names import release_name

APP, RELEASES, HISTORY = "stock-stats", 10, 4_000_000
# until what a start and the last batches made is compiled, written and collected
REST_S = 60.0
IDLE_S = 60.0


def measure(context: Context, releases: int, records: int) -> dict[str, Any]:
    """`one`, and `all`: what the first of `releases` releases costs alone, and all of them, once each has read `records`
    records; see `_cost`. `further_mb`: the memory that each further one needs.
    """
    produce(context.settings, sources_for(APP, Options()), history=records)
    names = [release_name(APP, version) for version in range(1, releases + 1)]
    execute(context, plan_stage(context, APP, version=1))
    _start(context, names[0])
    one = _cost(context, names[:1])
    for version, name in enumerate(names[1:], 2):
        plan = plan_stage(context, APP, version=version, same_as=names[0], correction="one more of the same")
        execute(context, plan)
        _start(context, name)
    every = _cost(context, names)
    for name in names:
        execute(context, plan_stop(context, name))
    further = (every["memory_mb"] - one["memory_mb"]) / max(1, releases - 1)
    return {"releases": releases, "one": one, "all": every, "further_mb": round(further)}


def _start(context: Context, name: str) -> None:
    execute(context, plan_start(context, name))
    wait_ready(context, name, for_s=1.0, timeout_s=600)


def _cost(context: Context, names: Iterable[str]) -> dict[str, Any]:
    """What these releases use without input. `memory_mb`: of all their processes; a page that n of them share counts once.
    `rss_mb`: of the processes of each release, as `ps` shows it: a shared page counts for each. `cores`: of all.
    """
    state = context.registry.state()
    leases = [state.releases[name].lease for name in names]
    leaders = [lease.holder.pid for lease in leases if lease is not None]
    time.sleep(REST_S)
    began, used_s = time.monotonic(), sum(map(cpu_s, leaders))
    time.sleep(IDLE_S)
    cores = (sum(map(cpu_s, leaders)) - used_s) / (time.monotonic() - began)
    pids = [pid for leader in leaders for pid, _ in processes_of(leader)]
    return {
        "memory_mb": round(sum(map(pss_bytes, pids)) / 2**20),
        "rss_mb": [memory_mb(leader) for leader in leaders],
        "cores": round(cores, 3),
    }


def pss_bytes(pid: int) -> int:
    """The memory of a process, of which each page that n processes share counts as 1/n; 0: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
