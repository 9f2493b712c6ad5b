"""A Kafka cluster of three brokers on this machine, each a process that can be killed and started again.

They take nobody without TLS and a login, and neither do their controllers.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from orchestration.local import server_config
from orchestration.local.jars import broker_jars
from orchestration.local.ports import claim
from orchestration.local.preflight import find_java
from pipelines.engine.jvm.jars import broker_archive, mapping
from pipelines.kafka.client import admin
from pipelines.settings import Settings
from tests.security.certificates import Authority
from tests.security.guarded import ADMIN, MAKE_ADMIN, guard, login
from tests.shared.waiting import until

COUNT = 3
_HEAP_MB = 256
_START_S = 180.0
_CLUSTER_ID = "c3dpdGNoeWFyZC10ZXN0cw"
# what the embedded broker sets for one node, as a cluster of three has it
_OF_THREE = {
    "default.replication.factor": COUNT,
    "offsets.topic.replication.factor": COUNT,
    "transaction.state.log.replication.factor": COUNT,
    "transaction.state.log.min.isr": 2,
    "share.coordinator.state.topic.replication.factor": COUNT,
    "share.coordinator.state.topic.min.isr": 2,
    # Kafka's defaults
    "broker.session.timeout.ms": 9000,
    "broker.heartbeat.interval.ms": 2000,
    # a follower that is dead leaves the set of in-sync replicas after 30 s by default
    "replica.lag.time.max.ms": 3000,
}


class Brokers:
    """Three brokers. `min.insync.replicas` of the cluster stays 1, as by Kafka's default: topics must set their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = Authority.made(folder, "ca")
        # kept, as a claim ends with its object
        self._claims = [claim() for _ in range(COUNT)]
        self._ports = [each.port for each in self._claims]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.settings = Settings(
            bootstrap_servers=",".join(f"127.0.0.1:{port}" for port in self._ports),
            replication_factor=COUNT,
            kafka=login(self._authority, "admin", ADMIN),
        )
        for node in self.nodes:
            self._format(node)

    @property
    def nodes(self) -> range:
        return range(COUNT)

    def start(self, node: int) -> None:
        """Starts a broker, which then comes to life while the caller goes on."""
        assert node not in self._processes
        command = [*self._java(node, _HEAP_MB), "kafka.Kafka", str(server_config.properties_file(self._home(node)))]
        with (self._home(node) / "out.log").open("ab") as output:
            self._processes[node] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def kill(self, node: int) -> None:
        process = self._processes.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait(30)

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(30)
        self._processes.clear()

    def await_in_sync(self, settings: Settings) -> None:
        """Waits until each partition is on all brokers."""

        def in_sync() -> bool:
            client = admin(settings)
            names = list(client.list_topics(timeout=10).topics)
            found = client.describe_topics(TopicCollection(names), request_timeout=10)
            parts = [part for future in found.values() for part in future.result().partitions]
            return all(len(part.isr) == COUNT for part in parts)

        until("replicas are not in sync", in_sync, _START_S, poll_s=0.5)

    def configure(self, settings: Settings, topic: str, config: Mapping[str, str]) -> None:
        """Sets settings of a topic."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        for name, value in config.items():
            resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
        # kept: with its client, an answer is lost
        client = admin(settings)
        for future in client.incremental_alter_configs([resource]).values():
            future.result(30)

    def leader_of(self, settings: Settings, topic: str, partition: int) -> int:
        """The broker that leads a partition."""
        leader = admin(settings).list_topics(topic, timeout=10).topics[topic].partitions[partition].leader
        return leader - 1

    def _home(self, node: int) -> Path:
        return self._folder / f"broker-{node}"

    def _format(self, node: int) -> None:
        home = self._home(node)
        home.mkdir(parents=True)
        port = self._ports[node]
        path = server_config.write(home, data=home / "data", log=home / "broker.log", port=port)
        guarded = guard(port, self._authority.server(f"broker-{node}"), self._authority)
        voters = ",".join(f"{n + 1}@127.0.0.1:{port + 1}" for n, port in enumerate(self._ports))
        changed = {
            "node.id": node + 1,
            "controller.quorum.voters": voters,
            **_OF_THREE,
            **dict(line.split("=", 1) for line in guarded.splitlines()),
        }
        text = path.read_text()
        for name, value in changed.items():
            text = re.sub(rf"^{re.escape(name)}=.*\n", "", text, flags=re.MULTILINE) + f"{name}={value}\n"
        path.write_text(text)
        command = [*self._java(node, 128), "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(path)]
        command += MAKE_ADMIN
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)

    def _java(self, node: int, heap_mb: int) -> list[str]:
        options = server_config.jvm_options(self._home(node), self._home(node), heap_mb)
        return [find_java().path, *options, *mapping(broker_archive()), "-cp", ":".join(map(str, broker_jars()))]


def _registered(client: AdminClient) -> Mapping[int, object]:
    try:
        return client.list_topics(timeout=1).brokers
    except KafkaException:
        return {}


@contextmanager
def three_brokers(folder: Path) -> Iterator[Brokers]:
    """Three brokers that are up; they end with the block."""
    brokers = Brokers(folder)
    try:
        for node in brokers.nodes:
            brokers.start(node)
        client = admin(brokers.settings)
        until("a broker is missing", lambda: len(_registered(client)) == COUNT, _START_S)
        yield brokers
    finally:
        brokers.stop()
