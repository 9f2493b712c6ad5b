"""Drivers whose executors are containers of YARN: what stops one that can't work, and that no kill loses or doubles anything.

`make test-cluster` runs this, as root. Hosts are network namespaces of one machine, each with a disk of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from orchestration.sources import Faults, Options, produce, sources_for
from pipelines.kafka.registry import Registry
from tests.cluster.cluster import SLOW_S
from tests.cluster.life import assert_refused, await_batches, await_end, verify_counters
from tests.cluster.yarn import FULL, YarnCluster, configuration_of, write_configuration
from tests.e2e.harness import producing
from tests.shared.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.timeout(900)]

# with state in Python, and timers
RELEASES = {"product-counter.v1": {"views": "product-views"}}
HISTORY, RATE = 20_000, 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    folder = tmp_path_factory.mktemp("yarn")
    # settings are refused without it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(configuration_of(folder)))
        write_configuration(configuration_of(folder), "127.0.0.1", folder)
        found = YarnCluster(folder)
        yield found
        found.close()


# -- what a driver says before its first batch


@pytest.mark.parametrize(
    ("changes", "what", "setting"),
    [
        ({"executor_heap_mb": 16_384}, "no executors: one needs a container of ", "SWITCHYARD_EXECUTOR_HEAP_MB"),
        (
            {"spark": {"spark.yarn.queue": FULL}, "executor_timeout_s": 20},
            "no executors: YARN has not started the driver's application within 20 s",
            "spark.yarn.queue",
        ),
        ({"store_url": "OWN"}, "YARN has ended the driver's application before an executor was ready", "SWITCHYARD_STORE_URL"),
    ],
    ids=["too large", "full queue", "store"],
)  # fmt: skip
def test_a_driver_that_can_not_work_says_which_setting_to_change(
    cluster: YarnCluster, changes: dict[str, Any], what: str, setting: str
) -> None:
    assert_refused(cluster, cluster.one, changes, what, setting)
    # nothing stays in a queue
    until("an application is left behind", lambda: not cluster.applications(), SLOW_S, poll_s=1)


def test_a_manager_that_does_not_answer_is_named(cluster: YarnCluster) -> None:
    elsewhere = cluster.folder / "hadoop-elsewhere"
    write_configuration(elsewhere, cluster.one.address, cluster.hosts.disk)
    found = cluster.preflight(cluster.one, also={"HADOOP_CONF_DIR": str(elsewhere)})
    assert found["what"].startswith("no ResourceManager of YARN answers: "), found
    assert "HADOOP_CONF_DIR" in found["fix"] and str(elsewhere) in found["fix"], found


def test_a_host_without_the_jars_is_named(cluster: YarnCluster) -> None:
    own = cluster.hosts.disk / "own"
    # a link on the driver's disk alone
    cluster.one.link(own / "jars", cluster.jars)
    found = cluster.preflight(cluster.one, also={"SWITCHYARD_JARS_DIR": str(own / "jars")})
    # Spark's own container already needs them
    assert found["what"].startswith("YARN has ended the driver's application before an executor was ready"), found
    assert "ClassNotFoundException: Class io.switchyard.LocalFiles not found" in found["what"], found
    assert "SWITCHYARD_JARS_DIR" in found["fix"], found


# -- the life of a release


def test_nothing_is_lost_or_doubled_though_containers_and_an_application_are_killed(cluster: YarnCluster) -> None:
    here, options = cluster.here, Options(seed=7, per_second=100, faults=Faults.none())
    apps = {name.partition(".")[0]: name for name in RELEASES}
    for app in apps:
        produce(here, sources_for(app, options), history=HISTORY)
        cluster.switchyard(cluster.one, "stage", app, "--execute")
    for name in RELEASES:
        cluster.switchyard(cluster.one, "start", name, "--execute")
    cluster.supervise(cluster.one)
    await_end(here, RELEASES)
    with Registry(here, actor="tester") as registry, ExitStack() as stack:
        inputs = [stack.enter_context(producing(here, sources_for(app, options), RATE)) for app in apps]
        await_batches(here, RELEASES)

        # 1. the executor of each is killed; another container takes its place
        before = cluster.executors()
        assert len(before) == len(set(before.values())) == len(RELEASES)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        await_batches(here, RELEASES)
        assert sorted(cluster.executors().values()) == sorted(before.values())

        # 2. an operator of YARN kills the applications; each driver says so and ends, and the supervisor starts another
        old = cluster.executors().keys()
        tokens = {name: _token(registry, name) for name in RELEASES}
        applications = cluster.applications()
        assert len(applications) == len(RELEASES)
        for application in applications:
            cluster.kill(application)
        until("a driver says nothing", lambda: all(_has_ended(cluster, name) for name in RELEASES), SLOW_S)
        until(
            "no other driver was started",
            lambda: all(_token(registry, name) > tokens[name] for name in RELEASES),
            SLOW_S,
        )
        await_batches(here, RELEASES)
        assert not old & cluster.executors().keys()
        for end in inputs:
            end()
    await_end(here, RELEASES)
    verify_counters(here.bootstrap)
    _stop(cluster)


def _stop(cluster: YarnCluster) -> None:
    """Stops the releases. Nothing of them is left in YARN, or in the folder where Spark puts its properties."""
    for name in RELEASES:
        cluster.switchyard(cluster.one, "stop", name, "--execute")
    until("an application goes on", lambda: not cluster.applications(), SLOW_S, poll_s=1)
    until("a container goes on", lambda: not cluster.executors(), SLOW_S)
    assert not list((cluster.hosts.store / "yarn").rglob("application_*"))


def _has_ended(cluster: YarnCluster, name: str) -> bool:
    """Whether a driver of the release has said that YARN has ended its application."""
    log = cluster.one.read(cluster.hosts.disk / "state" / "logs" / f"{name}.log")
    return f"the application of {name} (KILLED)" in log


def _token(registry: Registry, name: str) -> int:
    lease = registry.state().releases[name].lease
    return lease.token if lease else 0
