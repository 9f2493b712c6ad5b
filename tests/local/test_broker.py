from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from orchestration.local import server_config
from orchestration.local.broker import EmbeddedBroker, refuse_another_s
from orchestration.local.jars import broker_jars
from orchestration.local.preflight import find_java
from orchestration.local.process import ProcessRef
from orchestration.operations.context import open_context
from pipelines.errors import BadUsage, SwitchyardError, Unavailable
from pipelines.kafka.client import admin, consumer, producer, require_broker
from pipelines.kafka.topics import topic_names
from pipelines.settings import Settings
from tests.conftest import FreshTopic
from tests.shared.ports import port_of
from tests.shared.sockets import is_local, listening

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# beside the session's own broker and its controller
PORT = port_of("local")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state", broker_port=PORT, broker_heap_mb=256)


@pytest.fixture
def own(settings: Settings) -> Iterator[EmbeddedBroker]:
    """A broker of the test's own, not started yet."""
    embedded = EmbeddedBroker(settings)
    yield embedded
    embedded.stop()


def write(settings: Settings, topic: str, value: bytes) -> None:
    client = producer(settings)
    client.produce(topic, value, partition=0)
    assert client.flush(10) == 0


def read(settings: Settings, topic: str, count: int) -> list[bytes | None]:
    """The first `count` values of partition 0."""
    from confluent_kafka import TopicPartition

    client = consumer(settings)
    try:
        client.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in client.consume(count, timeout=10)]
    finally:
        client.close()


@pytest.mark.broker
def test_the_broker_listens_on_this_machine_only(broker: Settings) -> None:
    pid = EmbeddedBroker(broker).status().pid
    assert pid is not None
    found = listening(pid)
    assert {broker.broker_port, broker.broker_port + 1} <= {port for _, port in found}
    assert all(is_local(address) for address, _ in found), found


def test_a_cluster_of_ones_own_has_no_embedded_broker() -> None:
    with pytest.raises(BadUsage, match="name a cluster, elsewhere:9092"):
        EmbeddedBroker(Settings(bootstrap_servers="elsewhere:9092"))


def test_stopping_what_was_never_started_leaves_no_trace(own: EmbeddedBroker, settings: Settings) -> None:
    assert own.stop() is False
    assert not own.status().running
    assert not settings.state_dir.exists()


def test_a_busy_port_is_refused_before_anything_is_written(own: EmbeddedBroker, settings: Settings) -> None:
    for port in (PORT, PORT + 1):
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with pytest.raises(SwitchyardError) as caught:
                own.start()
        assert f"port {port} is busy: process {os.getpid()}" in caught.value.what
        assert "SWITCHYARD_BROKER_PORT" in caught.value.fix
    assert not (settings.state_dir / "broker" / "data").exists()


def test_the_broker_of_another_state_directory_is_named(settings: Settings, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / ".switchyard"
    properties = theirs / "broker" / "server.properties"
    program = f"import socket, time; s = socket.socket(); s.bind(('127.0.0.1', {PORT})); s.listen(); print(flush=True); time.sleep(600)"
    # as the JVM that listens for it: known by its command
    command = [sys.executable, "-c", program, "kafka.Kafka", str(properties)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as there:
        try:
            assert there.stdout is not None
            there.stdout.readline()
            for asked in (EmbeddedBroker(settings).start, lambda: open_context(settings)):
                with pytest.raises(BadUsage) as caught:
                    asked()
                assert f"the broker on port {PORT} belongs to the state folder {theirs}" in caught.value.what
                assert f"SWITCHYARD_STATE_DIR={theirs}" in caught.value.fix
            refuse_another_s(settings.model_copy(update={"state_dir": theirs}))
            refuse_another_s(settings.model_copy(update={"broker_port": PORT + 1}))
        finally:
            there.kill()


def test_without_java_it_says_how_to_get_one(
    own: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SwitchyardError, match="no Java") as caught:
        own.start()
    assert "openjdk-17" in caught.value.fix


def test_a_pid_file_of_another_process_is_not_believed(own: EmbeddedBroker, settings: Settings) -> None:
    me = ProcessRef.of(os.getpid())
    assert me is not None
    (settings.state_dir / "broker").mkdir(parents=True)
    ProcessRef(pid=me.pid, started="earlier").write(settings.state_dir / "broker" / "broker.pid")
    assert not own.status().running
    assert own.stop() is False


@dataclass(frozen=True)
class Said:
    """What a command has said as a process."""

    code: int
    out: str
    errors: str


@dataclass(frozen=True)
class Ended:
    """A broker that the terminal has started and stopped, and what the commands said."""

    settings: Settings
    up: Said
    as_json: Said
    shown: Said
    down: Said
    down_again: Said
    shown_again: Said


def switchyard(settings: Settings, *commands: str) -> list[Said]:
    """Runs these commands side by side."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "orchestration.cli", *command.split()],
                    env=settings.child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )
            for command in commands
        ]  # fmt: skip
        said = [each.communicate() for each in started]
        return [Said(each.returncode, *texts) for each, texts in zip(started, said, strict=True)]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A broker of the terminal's, with a topic and a record of it."""
    settings = Settings(state_dir=tmp_path_factory.mktemp("ended") / "state", broker_port=PORT, broker_heap_mb=256)
    try:
        [up] = switchyard(settings, "up")
        # the command has ended, and the broker has not
        client = require_broker(settings)
        client.create_topics([NewTopic("kept", 1, 1)])["kept"].result(timeout=10)
        write(settings, "kept", b"before")
        as_json, shown = switchyard(settings, "status --json", "status")
    finally:
        [down] = switchyard(settings, "down")
    down_again, shown_again = switchyard(settings, "down", "status")
    return Ended(settings, up, as_json, shown, down, down_again, shown_again)


@pytest.mark.long
@pytest.mark.broker
def test_the_terminal_starts_and_stops_it(ended: Ended) -> None:
    assert (ended.up.code, ended.up.errors) == (0, "")
    assert ended.as_json.code == ended.shown.code == 0
    assert json.loads(ended.as_json.out)["heap_mb"] == 256
    assert "heap up to 256 MiB, resident" in ended.shown.out
    assert "the broker is stopped" in ended.down.out
    assert "not running" in ended.down_again.out
    assert ended.shown_again.code == 1
    assert server_config.port(ended.settings.state_dir / "broker") == PORT


@pytest.mark.long
@pytest.mark.broker
def test_data_is_kept_and_a_second_start_is_none(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, own = ended.settings, EmbeddedBroker(ended.settings)
    # after a kill it waits until its earlier self has expired
    sooner = server_config._SERVER.replace("session.timeout.ms=5000", "session.timeout.ms=1000")
    monkeypatch.setattr(server_config, "_SERVER", sooner.replace("interval.ms=1000", "interval.ms=200"))
    assert not own.status().running
    try:
        first = own.start()
        assert own.start().pid == first.pid
        assert read(settings, "kept", 1) == [b"before"]
        # killed in the middle: nothing of it is in the way, and what was acknowledged is there
        write(settings, "kept", b"after")
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        assert own.start().pid != first.pid
        assert read(settings, "kept", 2) == [b"before", b"after"]
        assert own.stop() is True
        assert not own.status().running
    finally:
        own.stop()


@pytest.mark.broker
def test_one_that_dies_while_starting_tells_its_last_words(
    broker: Settings, own: EmbeddedBroker, settings: Settings
) -> None:
    # what a broker reads of its data first, of another node
    theirs, meta = (each.state_dir / "broker" / "data" / "meta.properties" for each in (broker, settings))
    meta.parent.mkdir(parents=True)
    meta.write_text(theirs.read_text().replace("node.id=1", "node.id=77"))
    with pytest.raises(SwitchyardError, match="died while starting") as caught:
        own.start()
    assert "77" in caught.value.what
    assert "broker.log" in caught.value.fix
    assert not own.status().running


def test_the_last_words_are_warnings_and_errors_with_all_their_lines(own: EmbeddedBroker, settings: Settings) -> None:
    log = settings.state_dir / "logs" / "broker.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "2026-01-01 10:00:00,001 ERROR of an earlier start (kafka.Kafka)\n"
        "2026-01-01 11:00:00,001 WARN [Controller id=1] the log appears to be empty. (kafka.Controller)\n"
        "2026-01-01 11:00:00,002 INFO KafkaConfig values: \n"
        + "".join(f"\tgroup.number.{n} = {n}\n" for n in range(40))
        + " (org.apache.kafka.common.config.AbstractConfig)\n"
        "2026-01-01 11:00:00,003 ERROR Unable to start acceptor (kafka.network.DataPlaneAcceptor)\n"
        "org.apache.kafka.common.KafkaException: Address already in use.\n"
        "\tat kafka.network.Acceptor.start(SocketServer.scala:511)\n"
    )
    assert [line.strip() for line in own._last_words(log.read_text().index("2026-01-01 11")).splitlines()] == [
        "2026-01-01 11:00:00,001 WARN [Controller id=1] the log appears to be empty. (kafka.Controller)",
        "2026-01-01 11:00:00,003 ERROR Unable to start acceptor (kafka.network.DataPlaneAcceptor)",
        "org.apache.kafka.common.KafkaException: Address already in use.",
        "at kafka.network.Acceptor.start(SocketServer.scala:511)",
    ]


@pytest.mark.broker
def test_another_broker_that_answers_is_not_taken_for_ones_own(broker: Settings, settings: Settings) -> None:
    settings = settings.model_copy(update={"broker_port": broker.broker_port})
    home = settings.state_dir / "broker"
    (home / "data").mkdir(parents=True)
    (home / "data" / "meta.properties").write_text("node.id=1\nversion=1\ncluster.id=Own-_fMtRzKcY5ZkDPmvYg\n")
    server_config.write(home, data=home / "data", log=home / "broker.log", port=broker.broker_port)
    # runs, and listens nowhere
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as silent:
        try:
            process = ProcessRef.of(silent.pid)
            assert process is not None
            process.write(home / "broker.pid")
            own = EmbeddedBroker(settings)
            found = own.status()
            assert found.running and not found.answering
            with pytest.raises(Unavailable) as caught:
                own.start(timeout_s=0.1)
            assert f"does not answer on port {broker.broker_port}" in caught.value.what
            assert "another broker answers there" in caught.value.what
        finally:
            silent.kill()


@pytest.mark.broker
def test_one_whose_port_is_taken_while_it_starts_says_so(
    broker: Settings, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if the other one had come after the look at the port
    monkeypatch.setattr("orchestration.local.broker.refuse_another_s", lambda _: None)
    monkeypatch.setattr(EmbeddedBroker, "_check_machine", lambda _: None)
    own = EmbeddedBroker(settings.model_copy(update={"broker_port": broker.broker_port}))
    with pytest.raises(SwitchyardError, match="died while starting") as caught:
        own.start()
    assert f"port {broker.broker_port} is busy: process {EmbeddedBroker(broker).status().pid} " in caught.value.what
    assert "Address already in use" in caught.value.what
    assert "SWITCHYARD_BROKER_PORT" in caught.value.fix and "broker.log" in caught.value.fix
    assert not own.status().running


@pytest.mark.broker
def test_a_running_broker_keeps_its_port(broker: Settings) -> None:
    moved = EmbeddedBroker(broker.model_copy(update={"broker_port": PORT}))
    with pytest.raises(BadUsage, match=f"already runs on port {broker.broker_port}"):
        moved.start()
    assert EmbeddedBroker(broker).status().answering


@pytest.mark.broker
def test_status_tells_memory_and_place(broker: Settings) -> None:
    found = EmbeddedBroker(broker).status()
    assert found.running
    assert found.answering
    assert found.heap_mb == broker.broker_heap_mb
    assert found.resident_bytes is not None and found.resident_bytes > 50 * 2**20
    assert found.uptime_s is not None
    assert found.log.exists()


@pytest.mark.broker
def test_it_listens_on_this_machine_only(broker: Settings) -> None:
    listening = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/net/tcp').read(), open('/proc/net/tcp6').read())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    port = f":{broker.broker_port:04X}"
    local = [row.split()[1] for row in listening.splitlines() if len(row.split()) > 3 and row.split()[3] == "0A"]
    addresses = {address.removesuffix(port) for address in local if address.endswith(port)}
    assert addresses and addresses <= {"0100007F", "0000000000000000FFFF00000100007F"}


@pytest.mark.broker
def test_a_misspelt_topic_is_not_created(broker: Settings) -> None:
    client = admin(broker)
    client.list_topics("misspelt", timeout=10)
    assert "misspelt" not in client.list_topics(timeout=10).topics


@pytest.mark.broker
def test_a_fresh_topic_has_what_was_asked_for(broker: Settings, fresh_topic: FreshTopic) -> None:
    name = fresh_topic(3, retention_ms="-1")
    assert len(admin(broker).list_topics(name, timeout=10).topics[name].partitions) == 3


@pytest.mark.broker
def test_kafkas_own_tools_run_from_the_same_jars(broker: Settings, tmp_path: Path) -> None:
    command = [
        *(find_java().path, "-Xmx128m", "-cp", ":".join(map(str, broker_jars()))),
        *("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--list"),
        *("--bootstrap-server", broker.bootstrap),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.broker
def test_no_client_creates_a_topic_by_asking_for_it(
    settings: Settings, own: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Kafka's defaults, a broker would: what is deleted, or retired, would come back."""
    changed = server_config._SERVER.replace("auto.create.topics.enable=false", "auto.create.topics.enable=true")
    assert changed != server_config._SERVER
    monkeypatch.setattr(server_config, "_SERVER", changed)
    own.start(60)
    admin(settings).list_topics("gone", timeout=10)
    writer, reader = producer(settings, message_timeout_ms=1_000), consumer(settings)
    writer.list_topics("gone", timeout=10)
    reader.list_topics("gone", timeout=10)
    reader.close()
    refused: list[KafkaError | None] = []
    writer.produce("gone", b"late", on_delivery=lambda error, _: refused.append(error))
    assert writer.flush(30) == 0
    assert "gone" not in topic_names(settings) and len(refused) == 1 and refused[0] is not None


@pytest.mark.broker
@pytest.mark.spark
def test_nor_does_the_producer_of_a_driver(
    settings: Settings, own: EmbeddedBroker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.engine.jvm_producer import JvmProducer

    changed = server_config._SERVER.replace("auto.create.topics.enable=false", "auto.create.topics.enable=true")
    monkeypatch.setattr(server_config, "_SERVER", changed)
    own.start(60)
    writer = JvmProducer(settings.model_copy(update={"request_timeout_s": 2.0}), "words.v1")
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce("gone", b"late", None)
    with pytest.raises(KafkaException, match="Topic gone not present in metadata"):
        writer.flush(10)
    writer.close()
    assert "gone" not in topic_names(settings)
