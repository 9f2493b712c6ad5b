"""Dagster on Postgres, on two hosts with a code location and a daemon each. All is set up as docs/dagster.md says."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from demo.ledger import check_result
from orchestration.sources import Faults, Options, produce, sources_for
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.registry import Registry
from pipelines.model.entries import LeaseTaken
from pipelines.model.names import result_topic
from tests.cluster.cluster import SLOW_S, Cluster
from tests.cluster.services import DagsterHost, Postgres
from tests.e2e.harness import at_rest, producing
from tests.shared.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.timeout(900)]

APP, RELEASE, INPUTS = "stock-stats", "stock-stats.v1", {"trades": "trades"}
HISTORY, RATE = 2_000, 50
OPTIONS = Options(seed=7, per_second=100, faults=Faults.none())
# a run that stages, starts and waits boots two JVMs
LONG_S = 2 * SLOW_S


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("dagster"), ("one", "two", "db"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def dagsters(cluster: Cluster) -> tuple[DagsterHost, DagsterHost]:
    """On the hosts `one`, which has the web server and a daemon, and `two`, which has no daemon yet."""
    postgres = Postgres(cluster, cluster.named["db"])
    one, two = (DagsterHost(cluster, cluster.named[name], postgres) for name in ("one", "two"))
    one.limit_pools()
    for each in (one, two):
        each.start("code")
    one.start("daemon", "web")
    one.until("Dagster has not loaded the definitions", one.loaded, timeout_s=SLOW_S)
    return one, two


@pytest.fixture(scope="module")
def registry(cluster: Cluster) -> Iterator[Registry]:
    with Registry(cluster.here, actor="tester") as found:
        yield found


def test_each_driver_is_started_once_though_daemons_die_and_a_host_is_lost(
    cluster: Cluster, dagsters: tuple[DagsterHost, DagsterHost], registry: Registry
) -> None:
    (one, two), here = dagsters, cluster.here
    produce(here, sources_for(APP, OPTIONS), history=HISTORY)
    with producing(here, sources_for(APP, OPTIONS), RATE) as end_input:
        # 1. a daemon dies in the middle of a run, and the run goes on
        one.add_partition("releases_stock_stats", RELEASE)
        run = one.queue_asset("results", APP, partition=RELEASE, config={"for_s": 1.0, "unread_records": 1_000})
        _dies_in_the_middle(one, one, run)
        one.events_of(run, timeout_s=LONG_S)
        [made] = one.materializations("results", APP)
        assert made["partition"] == RELEASE and made["records"] >= HISTORY and _leases(registry) == 1

        # 2. the other daemon takes the next run, and dies in the middle of it; the first one is back for the one after.
        # Of two at once, both may launch a run that somebody else has put into the queue, and Dagster fails it
        _start_daemon(two)
        driver = cluster.named[_holder(registry)].pids_of(RELEASE)
        _signal(driver, signal.SIGSTOP)
        run = one.queue("stop", config={"release": RELEASE, "execute": True})
        _dies_in_the_middle(one, two, run)
        _signal(driver, signal.SIGCONT)
        one.events_of(run, timeout_s=SLOW_S)
        _start_daemon(one)
        one.run_job("start", config={"release": RELEASE, "execute": True}, timeout_s=SLOW_S)
        _start_daemon(two)
        assert _leases(registry) == 2

        # 3. the driver dies, and two daemons with a supervisor each see that
        _signal(cluster.named[_holder(registry)].pids_of(RELEASE), signal.SIGKILL)
        until("no supervisor has started the driver", lambda: _runs(cluster, registry, 3), SLOW_S)

        # 4. a host is lost, with all that runs there
        lost = _holder(registry)
        cluster.named[lost].end()
        until("the other host has not taken over", lambda: _runs(cluster, registry, 4), SLOW_S)
        assert {lost, _holder(registry)} == {"one", "two"}
        end_input()
    at_end = partial(at_rest, here, RELEASE, INPUTS)
    until(f"{RELEASE} does not come to the end of its input", at_end, SLOW_S, poll_s=0.5)
    ledger = check_result(APP, here.bootstrap, result_topic(RELEASE, 1))
    assert ledger.clean and ledger.input_records > HISTORY, ledger
    # nobody has started one more
    assert _runs(cluster, registry, 4)
    _are_private(cluster, one)


def _start_daemon(dagster: DagsterHost) -> None:
    dagster.start("daemon")
    until("the daemon does not run", dagster.daemons, SLOW_S)


def _dies_in_the_middle(web: DagsterHost, dies: DagsterHost, run: str) -> None:
    """Kills the daemon of `dies` when the run has started."""
    web.until(f"run {run} has not started", lambda: web.status(run) not in ("QUEUED", "STARTING"), timeout_s=SLOW_S)
    dies.kill_daemon()
    assert web.status(run) == "STARTED"


def _signal(pids: list[int], number: signal.Signals) -> None:
    assert pids
    for pid in pids:
        os.kill(pid, number)


def _leases(registry: Registry) -> int:
    """How often a driver was started: each that runs has taken the lease once, and one that comes second takes none."""
    registry.state()
    return sum(isinstance(entry, LeaseTaken) for entry in registry.history())


def _runs(cluster: Cluster, registry: Registry, start: int) -> bool:
    """Whether the driver that was started as number `start` runs."""
    assert _leases(registry) <= start
    beat = latest_heartbeats(cluster.here).get(RELEASE)
    return beat is not None and beat.state == "running" and beat.token == start


def _holder(registry: Registry) -> str:
    lease = registry.state().releases[RELEASE].lease
    assert lease is not None
    return lease.holder.host


def _are_private(cluster: Cluster, dagster: DagsterHost) -> None:
    """What the services and their runs have written is for their user alone."""
    written = [path for path in (cluster.folder / "disk-of-one" / "dagster" / "storage").rglob("*") if path.is_file()]
    assert written and not [path for path in written if path.stat().st_mode & 0o077]
