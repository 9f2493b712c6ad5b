"""A rollout on Kubernetes, without Kubernetes: the commands of docs/kubernetes, in pods that are namespaces."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from demo.ledger import check_result
from orchestration.sources import Faults, Options, produce, sources_for
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.registry import Registry
from pipelines.model.names import result_topic
from pipelines.model.registry import Release
from pipelines.settings import Settings
from tests.cluster.cluster import SHORT_LIVED, SLOW_S, Cluster
from tests.cluster.hosts import HERE
from tests.cluster.pods import USER, Pod
from tests.e2e.harness import at_rest, producing
from tests.shared.bucket import ANY, OPTIONS, bucket_server
from tests.shared.waiting import until
from tests.test_kubernetes import PODS, SUPERVISOR, container

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.timeout(900)]

APP, NAME = "word-count", "word-count.v1"
DRIVER = "pipelines.engine.start"
INPUT = Options(seed=7, per_second=100, faults=Faults.none())
# far longer than the test waits: whoever takes over must have been told that the driver has ended
LEASE_S = 3_600.0


class Pods(Cluster):
    """Pods that share a bucket and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._server = ExitStack()
        super().__init__(folder, ())
        # on the network that all of them share by now
        server = self._server.enter_context(bucket_server(folder / "server", ANY))
        options = {**OPTIONS, "endpoint_override": f"{HERE}:{server.port}"}
        self._bucket = {"store_url": f"s3://{server.bucket}/store", "store": options}
        self.registry = Registry(self.here, actor="tester")

    @property
    def here(self) -> Settings:
        found = super().here
        return Settings(**{**found.model_dump(include={"bootstrap_servers", "state_dir"}), **self._bucket})

    def close(self) -> None:
        self.registry.close()
        super().close()
        self._server.close()

    def add(self, name: str) -> Pod:
        lines = {
            "bootstrap_servers": self.here.bootstrap, "store_url": self._bucket["store_url"], "lease_timeout_s": LEASE_S,
            "boot_timeout_s": LEASE_S, "driver_heap_mb": 512, "driver_cores": 1,
        }  # fmt: skip
        toml = "".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items())
        toml += f'[spark]\n"spark.driver.defaultJavaOptions" = {json.dumps(SHORT_LIVED)}\n'
        return Pod(self.hosts, name, toml, {"SWITCHYARD_STORE": json.dumps(self._bucket["store"])})

    @property
    def release(self) -> Release:
        return self.registry.state().releases[NAME]

    @property
    def holder(self) -> str | None:
        lease = self.release.lease
        return None if lease is None or self.release.lease_ended else lease.holder.host

    def committed(self) -> int:
        found = newest_progress(self.here, NAME)
        return found.boundary.batch_id if found else -1

    def await_batches(self, more: int = 2) -> None:
        before = self.committed()
        until("no more batches", lambda: self.committed() >= before + more, SLOW_S)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    found = Pods(tmp_path)
    yield found
    found.close()


def _is_ready(pod: Pod) -> bool:
    command = container(SUPERVISOR)["readinessProbe"]["exec"]["command"]
    return pod.run(*map(str, command)).returncode == 0


def _supervisor(pod: Pod) -> int:
    [pid] = pod.host.pids_of("supervise")
    return pid


def test_a_rollout_moves_drivers_at_a_boundary_and_the_next_pod_takes_over_at_once(pods: Pods) -> None:
    here = pods.here
    old, new = pods.add("old"), pods.add("new")
    _has_no_rights(old)
    produce(here, sources_for(APP, INPUT), history=2_000)
    with producing(here, sources_for(APP, INPUT), 50) as end_input:
        for pod in (old, new):
            assert not _is_ready(pod)
        old.start(container(SUPERVISOR)["args"])
        old.execute("stage", APP, "--execute")
        old.execute("start", NAME, "--execute")
        pods.await_batches()
        assert pods.holder == "old"
        new.start(container(SUPERVISOR)["args"])
        for pod in (old, new):
            until(f"{pod.host.name} is not ready", partial(_is_ready, pod), SLOW_S, poll_s=1.0)

        os.kill(_supervisor(old), signal.SIGTERM)
        until("the supervisor has not ended", lambda: not old.host.pids_of("supervise"), SLOW_S)
        # the kernel ends what is left with the first process of the container
        assert not old.host.pids_of(DRIVER)
        said = old.host.log.read_text()
        assert "the drivers of this host have stopped" in said, said
        old.host.end()

        until("the new pod has not taken over", lambda: pods.holder == "new", SLOW_S)
        pods.await_batches()
        end_input()
    until("it does not come to the end", partial(at_rest, here, NAME, {"lines": "lines"}), SLOW_S, poll_s=0.5)
    log = (new.state / "state" / "logs" / f"{NAME}.log").read_text()
    assert "comes from the bucket" in log and "run again" not in log, log
    ledger = check_result(APP, here.bootstrap, result_topic(NAME, 1))
    assert ledger.clean and ledger.input_records > 2_000, ledger.as_json()
    _serves_metrics(new)


def _has_no_rights(pod: Pod) -> None:
    found = pod.run(
        "sh", "-c", "id -u; grep CapBnd /proc/self/status; touch /opt/switchyard/x /etc/x /etc/switchyard/x"
    )
    assert found.stdout.startswith(f"{USER}\nCapBnd:\t0000000000000000\n")
    assert len(re.findall("Read-only file system", found.stdout)) == 3, found.stdout


def _serves_metrics(pod: Pod) -> None:
    pod.start(container(PODS["Deployment switchyard-metrics"])["args"])
    address = f"http://{pod.host.address}:9788/metrics"

    def served() -> str:
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    text = until("no metrics", served, SLOW_S, poll_s=0.5)
    assert f'release="{NAME}"' in text and "switchyard_up 1.0" in text, text
