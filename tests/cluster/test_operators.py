"""Three hosts that share a store, a folder or a bucket: one stages, one runs the drivers, one has nothing but the settings.

Their clocks differ: that of the first is a minute ahead, that of the last a minute behind.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from demo.ledger import check_result
from orchestration.sources import Faults, Options, produce, sources_for
from pipelines.errors import Refused
from pipelines.kafka.clock import elapsed_s
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.registry import Registry
from pipelines.model.names import result_topic
from pipelines.settings import Settings
from tests.cluster.cluster import SLOW_S, Cluster
from tests.cluster.hosts import HERE, Host, clock_library, with_clock
from tests.e2e.harness import at_rest, producing
from tests.shared.bucket import ANY, bucket_server
from tests.shared.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.timeout(900)]

APP, V1, V2 = "stock-stats", "stock-stats.v1", "stock-stats.v2"
INPUTS = {"trades": "trades"}
HISTORY, RATE = 5_000, 50
DRIVER = "pipelines.engine.start"
# host -> how far its clock is ahead, in seconds
CLOCKS = {"stager": 60, "desk": -60}
OPTIONS = Options(seed=7, per_second=100, faults=Faults.none())


class ThreeHosts(Cluster):
    """`stager` stages, `drivers` runs the drivers, `desk` is an operator's."""

    def __init__(self, folder: Path, *, bucket: bool) -> None:
        self._store: Mapping[str, Any] = {}
        self._server = ExitStack()
        self._clock = clock_library(folder)
        super().__init__(folder, ("stager", "drivers", "desk"))
        if bucket:
            # on the network that all of them share by now
            server = self._server.enter_context(bucket_server(folder / "server", ANY))
            self._store = server.settings(HERE)
        self.stager, self.drivers, self.desk = self.named.values()
        self.registry = Registry(self.here, actor="tester")

    def settings(self, host: Host, **changes: Any) -> Settings:
        # a switch waits for drivers that the test has suspended
        return super().settings(host, **{"driver_cores": 1, "switch_timeout_s": 150.0, **self._store, **changes})

    def environment(self, host: Host, **changes: Any) -> dict[str, str]:
        ahead_s = CLOCKS.get(host.name)
        if ahead_s is None:
            return super().environment(host, **changes)
        clock = with_clock(self._clock, ahead_s)
        # a driver there has the clock of its host, too
        return {**super().environment(host, driver_environment=tuple(clock), **changes), **clock}

    @property
    def here(self) -> Settings:
        return super().here.model_copy(update={**self._store})

    def close(self) -> None:
        self.registry.close()
        super().close()
        self._server.close()

    def start(self, host: Host, *arguments: object) -> None:
        """Starts a command on `host`, and does not wait for its end."""
        host.start([sys.executable, "-m", "orchestration.cli", *map(str, arguments)], self.environment(host))

    def execute(self, host: Host, *arguments: object) -> str:
        return self.switchyard(host, *arguments, "--execute")


@pytest.fixture(scope="module", params=["folder", "bucket"])
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeHosts]:
    found = ThreeHosts(tmp_path_factory.mktemp("operators"), bucket=request.param == "bucket")
    yield found
    found.close()
    # all hosts have a folder in common, in both cases
    assert bool(list(found.hosts.store.iterdir())) == (request.param == "folder")


def test_an_operator_needs_neither_the_host_that_staged_nor_the_disk_of_the_drivers(hosts: ThreeHosts) -> None:
    here, desk = hosts.here, hosts.desk
    for name, ahead_s in CLOCKS.items():
        assert _ahead_s(hosts, hosts.named[name]) == pytest.approx(ahead_s, abs=20)
    produce(here, sources_for(APP, OPTIONS), history=HISTORY)
    with producing(here, sources_for(APP, OPTIONS), RATE) as end_input:
        _bring_up(hosts)
        plan = _propose(hosts)
        # the operator on another host dies in the middle of the switch, and the desk goes on with it
        _die_in_the_middle(hosts, "approve", plan)
        _resume(hosts, plan)
        assert _live(hosts) == V2
        # and in the middle of a rollback, which the desk ends
        rollback = _die_in_the_middle(hosts, "rollback", APP)
        hosts.switchyard(desk, "abandon", rollback)
        assert _under_way(hosts) is None
        assert _live(hosts) == V2
        hosts.execute(desk, "rollback", APP)
        assert _live(hosts) == V1
        _reset_and_undo(hosts)
        _cut_off(hosts)
        end_input()
    _await_end(hosts)
    for name in (V1, V2):
        ledger = check_result(APP, here.bootstrap, result_topic(name, 1))
        assert ledger.clean and ledger.input_records > HISTORY, (name, ledger)
    # the desk ran no driver
    assert not desk.pids_of(DRIVER)
    assert not list((hosts.folder / "disk-of-desk").glob("state/logs/*"))


def _ahead_s(hosts: ThreeHosts, host: Host) -> float:
    """How far the clock of a host is ahead of this one's, in seconds."""
    done = host.run([sys.executable, "-c", "import time; print(time.time())"], hosts.environment(host), 60)
    return float(done.stdout) - time.time()


def _bring_up(hosts: ThreeHosts) -> None:
    """Staged on one host, started on another, checked and promoted on the third."""
    hosts.execute(hosts.stager, "stage", APP)
    hosts.execute(hosts.stager, "stage", APP, "--same-as", V1, "--correction", "to compare")
    for name in (V1, V2):
        hosts.execute(hosts.drivers, "start", name)
    hosts.switchyard(hosts.desk, "wait", V1, "--unread", 1_000, "--for", "1s")
    hosts.switchyard(hosts.desk, "check", V1)
    hosts.execute(hosts.desk, "promote", V1)
    assert _live(hosts) == V1


def _propose(hosts: ThreeHosts) -> str:
    """The id of the promotion to approve."""
    said = hosts.execute(
        hosts.desk, "reprocess", APP, "--version", 2, "--same-as", V1, "--correction", "to compare",
        "--unread", 1_000, "--for", "1s",
    )  # fmt: skip
    [plan] = re.findall(r"switchyard approve (\S+) --execute", said)
    assert _live(hosts) == V1
    return str(plan)


def _die_in_the_middle(hosts: ThreeHosts, *command: str) -> str:
    """Has an operator on `stager` die while it waits for the drivers, which can't move meanwhile. Returns the operation."""
    suspended = hosts.drivers.pids_of(DRIVER)
    assert len(suspended) == 2
    for pid in suspended:
        os.kill(pid, signal.SIGSTOP)
    try:
        hosts.start(hosts.stager, *command, "--execute")
        operation = until(f"{command} is not under way", partial(_under_way, hosts), SLOW_S)
        for pid in hosts.stager.pids_of(command[0]):
            os.kill(pid, signal.SIGKILL)
    finally:
        for pid in suspended:
            os.kill(pid, signal.SIGCONT)
    assert _under_way(hosts) == operation
    return str(operation)


def _under_way(hosts: ThreeHosts) -> str | None:
    found = [each.opened.id for each in hosts.registry.state().operations.values() if each.closed is None]
    return found[0] if found else None


def _resume(hosts: ThreeHosts, operation: str) -> None:
    """Goes on with an operation on the desk, which is refused while the dead operator may live."""
    done = partial(hosts.run, hosts.desk, "orchestration.cli", "resume", operation, timeout_s=SLOW_S)
    refused = done()
    assert refused.returncode == Refused.exit_code, refused.stdout
    until(f"{operation} can't be resumed", lambda: done().returncode == 0, SLOW_S, poll_s=1.0)
    assert _under_way(hosts) is None


def _reset_and_undo(hosts: ThreeHosts) -> None:
    """The standby reads everything again, and then is what it was before."""
    desk = hosts.desk
    before = hosts.registry.state().releases[V2].generation
    hosts.execute(desk, "reset", V2, "--to-earliest", "--stop", "--stay-stopped")
    release = hosts.registry.state().releases[V2]
    assert release.generation == before + 1 and release.under is not None
    hosts.execute(hosts.drivers, "start", V2)
    _await_batches(hosts, V2)
    hosts.execute(desk, "stop", V2)
    hosts.execute(desk, "undo", str(release.under.op))
    assert hosts.registry.state().releases[V2].generation == before
    hosts.execute(hosts.drivers, "start", V2)


def _cut_off(hosts: ThreeHosts) -> None:
    """The drivers' host loses the network, another one takes over, and then it is back."""
    hosts.supervise(hosts.stager)
    _leaves_living_drivers_alone(hosts)
    hosts.drivers.cut_off()
    until("nobody has taken over", lambda: {_holder(hosts, name) for name in (V1, V2)} == {"stager"}, SLOW_S)
    for name in (V1, V2):
        _await_batches(hosts, name)
        assert hosts.drivers.pids_of(name)
    hosts.drivers.rejoin()
    until("a driver that was replaced still runs", lambda: not hosts.drivers.pids_of(DRIVER), SLOW_S)
    for name in (V1, V2):
        log = (hosts.folder / "disk-of-drivers" / "state" / "logs" / f"{name}.log").read_text()
        assert re.search(rf"ERROR {name}: token \d+ is superseded by \d+", log), log[-2000:]
        assert _holder(hosts, name) == "stager"
        _await_batches(hosts, name)


def _leaves_living_drivers_alone(hosts: ThreeHosts) -> None:
    """Waits for longer than a driver may be silent, while a supervisor looks whose clock is ahead by more than that."""

    def leases() -> object:
        releases = hosts.registry.state().releases
        return [releases[name].lease for name in (V1, V2)]

    before, timeout_s = leases(), hosts.here.lease_timeout_s
    assert timeout_s < CLOCKS["stager"]
    until("the supervisor does not start", lambda: hosts.stager.pids_of("supervise"), SLOW_S)
    until_s = elapsed_s() + 2 * timeout_s
    until("the time does not pass", lambda: elapsed_s() > until_s, SLOW_S, poll_s=0.5)
    assert hosts.stager.pids_of("supervise") and leases() == before


def _await_batches(hosts: ThreeHosts, name: str, more: int = 2) -> None:
    def committed() -> int:
        found = newest_progress(hosts.here, name)
        return found.boundary.batch_id if found else -1

    before = committed()
    until(f"{name} commits nothing more", lambda: committed() >= before + more, SLOW_S)


def _await_end(hosts: ThreeHosts) -> None:
    for name in (V1, V2):
        at_end = partial(at_rest, hosts.here, name, INPUTS)
        until(f"{name} does not come to the end of its input", at_end, SLOW_S, poll_s=0.5)


def _holder(hosts: ThreeHosts, name: str) -> str | None:
    lease = hosts.registry.state().releases[name].lease
    return lease.holder.host if lease else None


def _live(hosts: ThreeHosts) -> str | None:
    switch = hosts.registry.state().live(APP)
    return switch.new if switch else None
