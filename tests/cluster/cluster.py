"""A broker and hosts that reach it; and a standalone cluster of Spark on such hosts."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pyspark

from orchestration.local import server_config
from orchestration.local.broker import EmbeddedBroker
from pipelines.engine.jvm.jars import jars_dir
from pipelines.settings import Settings
from tests.cluster.hosts import HERE, Host, Hosts
from tests.shared.waiting import until

ROOT = Path(__file__).resolve().parents[2]
MASTER_PORT = 7077
_BROKER_PORT = 19092
_HOSTS_PORT = _BROKER_PORT + 2
_SPARK_CLASS = Path(pyspark.__path__[0]) / "bin" / "spark-class"
# each lives for a minute or two
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_START_S = 60.0
# on busy cores a driver boots in a minute
SLOW_S = 200.0


class BrokerForHosts(EmbeddedBroker):
    """The embedded broker, with a second listener for the hosts."""

    def _write_configuration(self) -> None:
        super()._write_configuration()
        path = server_config.properties_file(self._home)
        own = f"HOSTS://{HERE}:{_HOSTS_PORT}"
        more = {"listeners": own, "advertised.listeners": own, "listener.security.protocol.map": "HOSTS:PLAINTEXT"}
        lines = (
            f"{line},{more[name]}" if (name := line.partition("=")[0]) in more else line
            for line in path.read_text().splitlines()
        )
        path.write_text("\n".join(lines) + "\n")


class Cluster:
    """A broker, and hosts that reach it. `hosts`: their names. Each has a state folder of its own; the store is shared."""

    def __init__(self, folder: Path, hosts: Sequence[str]) -> None:
        self.folder, self.jars = folder, jars_dir()
        self.hosts = Hosts(folder)
        local = Settings(state_dir=folder / "broker-state", broker_port=_BROKER_PORT, broker_heap_mb=384)
        self._broker = BrokerForHosts(local)
        try:
            self._broker.start(180)
            self.named = {name: self.hosts.add(name) for name in hosts}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.hosts.close()
        self._broker.stop()

    # -- drivers and commands

    @property
    def plain_environment(self) -> dict[str, str]:
        """That of a process on any host, without settings but the folder of the jars."""
        passed = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_")}
        return {**passed, "PYTHONPATH": str(ROOT), "SWITCHYARD_JARS_DIR": str(self.jars), "HOME": str(self.hosts.disk)}

    def environment(self, host: Host, **changes: Any) -> dict[str, str]:
        """That of a process on `host`, with its settings."""
        return {**self.plain_environment, **self.settings(host, **changes).environment()}

    def settings(self, host: Host, **changes: Any) -> Settings:
        """The settings of a driver or a command on `host`."""
        given: Mapping[str, Any] = {
            "bootstrap_servers": f"{HERE}:{_HOSTS_PORT}",
            "state_dir": self.hosts.disk / "state",
            "store_url": str(self.hosts.store),
            "driver_heap_mb": 512,
            "boot_timeout_s": 300,
            "probe_timeout_s": 500,
            "spark": {"spark.driver.defaultJavaOptions": SHORT_LIVED},
        }
        return Settings(**{**given, **changes})

    def run(
        self,
        host: Host,
        *command: object,
        timeout_s: float = 120,
        also: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> CompletedProcess[str]:
        """Runs a Python module on `host`."""
        return host.run(
            [sys.executable, "-m", *map(str, command)],
            {**self.environment(host, **changes), **(also or {})},
            timeout_s,
        )

    def switchyard(self, host: Host, *arguments: object, timeout_s: float = 600) -> str:
        """Runs a command on `host`, which must succeed. Returns what it says."""
        done = self.run(host, "orchestration.cli", *arguments, timeout_s=timeout_s)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def supervise(self, host: Host) -> None:
        """Starts a supervisor on `host`, which starts drivers there."""
        host.start([sys.executable, "-m", "orchestration.cli", "supervise"], self.environment(host))

    def preflight(self, host: Host, **changes: Any) -> dict[str, str]:
        """What the preflight of a driver on `host` says: `what` and `fix`; empty if nothing is wrong."""
        done = self.run(host, "tests.cluster.preflight", timeout_s=300, **changes)
        assert done.returncode == 0 and done.stdout.strip(), done.stdout
        # Spark's last words may come after it
        found: dict[str, str] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
        return found

    @property
    def here(self) -> Settings:
        """The settings of the test itself, which is on the network of the hosts, and has their store."""
        return Settings(
            bootstrap_servers=f"{HERE}:{_HOSTS_PORT}",
            state_dir=self.folder / "state",
            store_url=str(self.hosts.store),
        )


class StandaloneCluster(Cluster):
    """`one` and `two` are hosts for drivers; `three` has the master and a worker, `four` another worker."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("one", "two", "three", "four"))
        self.one, self.two, self.three, self.four = self.named.values()
        self.master = f"spark://{self.three.address}:{MASTER_PORT}"
        try:
            self._start_spark()
        except BaseException:
            self.close()
            raise

    def settings(self, host: Host, **changes: Any) -> Settings:
        given: Mapping[str, Any] = {
            "store_shared": True,
            "spark_master": self.master,
            "driver_host": host.address,
            "executors": 2,
            "executor_cores": 1,
            "executor_heap_mb": 512,
            # busy cores are not what is tested
            "executor_timeout_s": 100,
            "spark": {
                "spark.driver.defaultJavaOptions": SHORT_LIVED,
                "spark.executor.defaultJavaOptions": SHORT_LIVED,
            },
        }
        return super().settings(host, **{**given, **changes})

    # -- Spark's own processes

    def _start_spark(self) -> None:
        self._daemon(self.three, "master.Master", "--host", self.three.address, "--port", MASTER_PORT)
        # more cores than there are: a driver that takes over finds some free while the old one's executors still live
        for host in (self.three, self.four):
            self._daemon(
                host, "worker.Worker", "--host", host.address, "--cores", 4, "--memory", "4g",
                "--work-dir", self.hosts.disk / "work", self.master,
            )  # fmt: skip
        until("no worker has registered", lambda: self._registered() == 2, _START_S, poll_s=0.5)

    def _daemon(self, host: Host, name: str, *arguments: object) -> None:
        environment = {
            **self.plain_environment,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self.hosts.disk),
        }
        host.start(["bash", str(_SPARK_CLASS), f"org.apache.spark.deploy.{name}", *map(str, arguments)], environment)

    def executors_of(self, release: str) -> list[int]:
        """The processes of the executors of a release's newest driver, on both hosts."""
        said = self.three.log.read_text(errors="replace")
        [*_, app] = re.findall(rf"Registered app {re.escape(release)} with ID (app-\S+)", said)
        return [pid for host in (self.three, self.four) for pid in host.pids_of(app)]

    def _registered(self) -> int:
        return self.three.log.read_text(errors="replace").count("Registering worker")
