"""Drivers whose Spark runs on other hosts: what stops one that can't work, and that no kill loses or doubles anything.

`SWITCHYARD_EXECUTOR_KILLS` is the number of executors that are killed, each in the middle of a batch;
`SWITCHYARD_KILLS_SEED` seeds which ones.

`make test-cluster` runs this, as root. Each host has a network, a disk and processes of its own; the store alone is shared.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from demo.ledger import check_result
from orchestration.sources import Faults, Options, produce, sources_for
from pipelines.engine.checkpoint import Checkpoint, newest_folder
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.registry import Registry
from pipelines.model.names import result_topic
from tests.cluster.cluster import SLOW_S, StandaloneCluster
from tests.cluster.life import assert_refused, await_batches, await_end, committed, verify_counters
from tests.e2e.harness import producing
from tests.shared.waiting import until

# a window in Spark, and state in Python
RELEASES = {"stock-stats.v1": {"trades": "trades"}, "product-counter.v1": {"views": "product-views"}}
HISTORY, RATE = 20_000, 200
KILLS = int(os.environ.get("SWITCHYARD_EXECUTOR_KILLS", "5"))
SEED = int(os.environ.get("SWITCHYARD_KILLS_SEED", "1"))
pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.timeout(600 + 60 * KILLS)]

# of the processor, in hundredths of a second: more than an idle executor uses between two looks
_BUSY_TICKS = 2
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    found = StandaloneCluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


# -- what a driver says before its first batch


@pytest.mark.parametrize(
    ("changes", "what", "setting"),
    [
        ({"spark_master": "spark://three:7078"}, "no Spark master answers", "SWITCHYARD_SPARK_MASTER"),
        ({"executor_cores": 64, "executor_timeout_s": 10}, "no executors: ", "SWITCHYARD_EXECUTOR_CORES"),
        (
            {"driver_host": "198.18.77.99", "driver_bind_address": "0.0.0.0", "executor_timeout_s": 20},
            "executors can't reach the driver at 198.18.77.99",
            "SWITCHYARD_DRIVER_HOST",
        ),
        ({"store_url": "OWN"}, "the store isn't shared: ", "SWITCHYARD_STORE_URL"),
    ],
    ids=["no master", "no executors", "unreachable", "store"],
)
def test_a_driver_that_can_not_work_says_which_setting_to_change(
    cluster: StandaloneCluster, changes: dict[str, Any], what: str, setting: str
) -> None:
    assert_refused(cluster, cluster.one, changes, what, setting)


def test_a_host_without_the_jars_or_with_another_python_is_named(cluster: StandaloneCluster) -> None:
    own = cluster.hosts.disk / "own"
    # a link on the driver's disk alone
    cluster.one.link(own / "jars", cluster.jars)
    found = cluster.preflight(cluster.one, also={"SWITCHYARD_JARS_DIR": str(own / "jars")})
    assert found["what"].startswith("no such class on ") and "SWITCHYARD_JARS_DIR" in found["fix"], found
    found = cluster.preflight(cluster.one, also={"PYSPARK_PYTHON": str(own / "python3.11")})
    assert found["what"].startswith("executors can't run the driver's Python") and "PYSPARK_PYTHON" in found["fix"], (
        found
    )


# -- the life of two releases


def test_nothing_is_lost_or_doubled_though_executors_and_the_driver_s_host_are_lost(cluster: StandaloneCluster) -> None:
    here, options = cluster.here, Options(seed=7, per_second=100, faults=Faults.none())
    apps = {name.partition(".")[0]: name for name in RELEASES}
    for app in apps:
        produce(here, sources_for(app, options), history=HISTORY)
        cluster.switchyard(cluster.one, "stage", app, "--execute")
    _start_without_master(cluster, apps["stock-stats"])
    for name in RELEASES:
        cluster.switchyard(cluster.one, "start", name, "--execute")
    await_end(cluster.here, RELEASES)
    with Registry(here, actor="tester") as registry, ExitStack() as stack:
        inputs = [stack.enter_context(producing(here, sources_for(app, options), RATE)) for app in apps]
        await_batches(cluster.here, RELEASES)

        # 1. executors are killed, each in the middle of a batch
        _kill_executors(cluster)

        # 2. the drivers' host is cut off; nobody is told, and its drivers go on as they can
        old = set(_executors(cluster))
        cluster.one.cut_off()
        cluster.supervise(cluster.two)
        until(
            "no driver of the other host has taken over",
            lambda: all(_holder(registry, name) == "two" for name in RELEASES),
            SLOW_S,
        )
        await_batches(cluster.here, RELEASES)
        until("executors that hear nothing of their driver go on", lambda: not old & set(_executors(cluster)), SLOW_S)
        # it never comes back
        cluster.one.end()
        for end in inputs:
            end()
    await_end(cluster.here, RELEASES)
    ledger = check_result("stock-stats", here.bootstrap, result_topic("stock-stats.v1", 1))
    assert ledger.clean and ledger.records > 0 and ledger.input_records > HISTORY, ledger
    verify_counters(here.bootstrap)


def _start_without_master(cluster: StandaloneCluster, name: str) -> None:
    """Starts a driver that can't work. What stops it reaches an operator as that of any other driver does."""
    cluster.run(cluster.one, "orchestration.cli", "start", name, "--execute", spark_master="spark://three:7078")

    def failed() -> str | None:
        beat = latest_heartbeats(cluster.here).get(name)
        return beat.error if beat is not None and beat.state == "failed" else None

    said = until("the driver does not say that it failed", failed, SLOW_S)
    assert "no Spark master answers at spark://three:7078" in said
    assert "no Spark master answers" in cluster.switchyard(cluster.one, "status", name)


def _kill_executors(cluster: StandaloneCluster) -> None:
    """Kills executors of the releases in turn, each while it works on a batch that is not committed. Each time, waits until the
    release has committed it, and another executor has come.
    """
    chance, hits, misses = random.Random(SEED), 0, 0
    while hits < KILLS:
        name = list(RELEASES)[hits % len(RELEASES)]
        _await_executors(cluster, name)
        pids, batch = cluster.executors_of(name), _next_batch(cluster, name)
        pid, at = _at_work(pids, chance), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        if committed(cluster.here, name) >= batch:
            # the other executor did the rest
            misses += 1
            assert misses <= KILLS
            continue
        hits += 1
        _await_batch(cluster, name, batch)
        print(f"kill {hits}: {name} commits batch {batch} after {time.monotonic() - at:.1f} s")
    for name in RELEASES:
        _await_executors(cluster, name)
    # Spark says which of them had tasks
    lost = sum(_log(cluster, name).count("ExecutorLostFailure") for name in RELEASES)
    print(f"{hits + misses} executors killed, {misses} of them after their batch; {lost} tasks lost with them")
    assert lost > 0


def _await_executors(cluster: StandaloneCluster, name: str) -> None:
    until(f"an executor of {name} is missing", lambda: len(cluster.executors_of(name)) == 2, SLOW_S)


def _await_batch(cluster: StandaloneCluster, name: str, batch: int) -> None:
    until(f"{name} does not commit batch {batch}", lambda: committed(cluster.here, name) >= batch, SLOW_S)


def _next_batch(cluster: StandaloneCluster, name: str) -> int:
    """Waits until the driver has planned a batch that is not committed. Returns its number."""
    checkpoint = newest_folder(cluster.here, name, 1)
    assert checkpoint is not None
    read = Checkpoint(checkpoint, RELEASES[name], name)
    before = read.last_planned()

    def planned() -> int | None:
        found = read.last_planned()
        return found if found != before else None

    batch: int = until(f"{name} plans no batch", planned, SLOW_S, poll_s=0.005)
    return batch


def _at_work(pids: list[int], chance: random.Random) -> int:
    """Waits until one of these processes computes. Returns one that does."""
    before = {pid: _cpu_ticks(pid) for pid in pids}

    def busy() -> list[int]:
        return [pid for pid in pids if _cpu_ticks(pid) - before[pid] >= _BUSY_TICKS]

    return chance.choice(until("no executor computes", busy, SLOW_S, poll_s=0.005))


def _cpu_ticks(pid: int) -> int:
    """What a process has used of the processors, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _log(cluster: StandaloneCluster, name: str) -> str:
    """The log of a release's driver on the first host."""
    return (cluster.folder / "disk-of-one" / "state" / "logs" / f"{name}.log").read_text(errors="replace")


def _executors(cluster: StandaloneCluster) -> list[int]:
    return [pid for host in (cluster.three, cluster.four) for pid in host.pids_of(EXECUTOR)]


def _holder(registry: Registry, name: str) -> str | None:
    lease = registry.state().releases[name].lease
    return lease.holder.host if lease else None
