"""Two hosts without a disk in common: their store is a bucket. One host dies, and the other goes on with the state."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.ledger import check_result
from pipelines.engine.checkpoint import Checkpoint, newest_folder
from pipelines.engine.copies import Copies, copies_of
from pipelines.kafka.client import producer
from pipelines.model.names import result_topic
from pipelines.settings import Settings
from tests.e2e.cluster import Cluster
from tests.shared.bucket import ask, bucket_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

APP, NAME = "word-count", "word-count.v1"


class Hosts:
    """Two hosts, each with its own state folder."""

    def __init__(self, one: Cluster, other: Cluster) -> None:
        self.one, self.other = one, other

    @property
    def copies(self) -> Copies:
        found = copies_of(self.one.settings, NAME, 1)
        assert found is not None
        return found

    def clean(self) -> bool:
        settings = self.one.settings
        return check_result(APP, settings.bootstrap, result_topic(NAME, 1)).clean


@pytest.fixture(scope="module")
def hosts(broker: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("hosts")
    with bucket_server(folder / "server") as bucket:
        made = [
            Cluster(
                broker,
                folder / name,
                lambda: spark,
                bootstrap_servers=broker.bootstrap,
                state_dir=folder / name / "state",
                checkpoint_copy_s=1.0,
                lease_timeout_s=4.0,
                **bucket.settings(),
            )
            for name in ("one", "other")
        ]
        try:
            yield Hosts(*made)
        finally:
            for each in reversed(made):
                each.close()


def _checkpoint(host: Cluster) -> Path:
    found = newest_folder(host.settings, NAME, host.state.releases[NAME].generation)
    assert found is not None
    return found


def _last_batch(host: Cluster) -> int:
    return Checkpoint(_checkpoint(host), {}, NAME).last_committed() or 0


def _is_copied(hosts: Hosts) -> bool:
    progress = hosts.one.context().progress(NAME)
    return progress is not None and hosts.copies.newest() == progress.boundary.batch_id


def _kill(host: Cluster) -> None:
    lease = host.state.releases[NAME].lease
    assert lease is not None and lease.holder.pid != os.getpid()
    os.killpg(lease.holder.pid, signal.SIGKILL)


def test_another_host_goes_on_with_the_state_of_one_that_died(hosts: Hosts) -> None:
    one, other = hosts.one, hosts.other
    one.load(APP, 2_000, per_second=100)
    # processes, to be killed
    for host in (one, other):
        host.drivers.processes.add(NAME)
    one.hydrate(APP, 1, batch=500)
    assert newest_folder(other.settings, NAME, 1) is None
    with one.producing(APP, 100, per_second=100):
        for running, idle in ((one, other), (other, one), (one, other)):
            copied = hosts.copies.newest() or 0
            one.until("no copy of live batches", lambda copied=copied: (hosts.copies.newest() or 0) >= copied + 2)
            before = hosts.copies.newest()
            _kill(running)
            idle.start(NAME, batch=500)
            # it has the state of a host whose disk it can't see
            log = idle.settings.state_dir / "logs" / f"{NAME}.log"
            assert _last_batch(idle) >= (before or 0) > 0, log.read_text()[-4_000:]
    other.settle(NAME, "lines")
    assert hosts.clean()


def test_the_first_host_takes_it_back_and_has_nothing_to_run_again(
    hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = hosts.one, hosts.other
    other.stop(NAME)
    # the last copy is written when a driver stops
    assert _is_copied(hosts)
    for host in (one, other):
        host.drivers.processes.clear()
    caplog.set_level(logging.INFO)
    one.start(NAME, batch=500)
    assert "comes from the bucket" in caplog.text and "run again" not in caplog.text
    with one.producing(APP, 100, per_second=100):
        pass
    one.settle(NAME, "lines")
    assert hosts.clean()


def test_a_host_without_the_checkpoint_keeps_the_state_through_a_reset(hosts: Hosts) -> None:
    one, other = hosts.one, hosts.other
    one.stop(NAME)
    # a line without words: nothing is lost if it is left out
    client = producer(one.settings)
    client.produce("lines", b"", b"")
    assert client.flush(10) == 0
    planned = other.cli("reset", NAME, "--to-latest", "--state", "keep")
    assert planned.code == 0, planned.text
    said = other.cli("reset", NAME, "--to-latest", "--state", "keep", "--execute")
    assert said.code == 0, said.text
    other.stop(NAME)
    # the new generation began on the other host, and this one has never seen it
    assert newest_folder(one.settings, NAME, 2) is None
    one.start(NAME, batch=500)
    assert newest_folder(one.settings, NAME, 2) is not None
    with one.producing(APP, 100, per_second=100):
        pass
    one.settle(NAME, "lines")
    assert hosts.clean()
    one.stop(NAME)


def test_a_driver_whose_copies_fail_runs_on_and_its_heartbeats_say_for_how_long(hosts: Hosts) -> None:
    one = hosts.one
    endpoint, bucket = one.settings.store["endpoint_override"], str(one.settings.store_url).split("/")[2]

    def fails_s() -> float | None:
        return one.context().beats()[NAME].copies_fail_s

    one.start(NAME, batch=500)
    assert fails_s() is None
    ask(f"http://{endpoint}/moto-api/reset", "POST")
    with one.producing(APP, 100, per_second=100):
        one.until("it does not say so", lambda: (fails_s() or 0) > 0)
        batch = _last_batch(one)
        one.until("it commits nothing more", lambda: _last_batch(one) > batch + 1)
        ask(f"http://{endpoint}/{bucket}", "PUT")
        one.until("it still says so", lambda: fails_s() is None)
    one.settle(NAME, "lines")
    assert hosts.clean()
    one.stop(NAME)
