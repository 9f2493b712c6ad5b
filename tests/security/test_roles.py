"""Each role does its whole work by the rights that docs/security.md names, and can do nothing else."""

from __future__ import annotations

import shlex
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from orchestration.local.jars import broker_jars
from orchestration.local.preflight import find_java
from pipelines.errors import Refused
from pipelines.follow import LiveConsumer
from pipelines.kafka import topics
from pipelines.kafka.acls import ROLES, Role, as_commands, rights
from pipelines.kafka.client import admin, producer
from pipelines.kafka.failures import forbidden
from pipelines.kafka.inputs import replication
from pipelines.kafka.login import java_properties
from pipelines.kafka.offsets import end_offsets, group_offsets
from pipelines.kafka.topics import delete_topics, ensure_topic, partition_count
from pipelines.model.missing import Replication
from pipelines.model.names import KAFKA_TOPICS, REGISTRY_TOPIC, dead_letter_topic
from tests.reset.world import HEAD
from tests.security.access import allow, as_asked, asked_by, binding, bindings_of
from tests.security.guarded import ADMIN, PLANTED, Guarded
from tests.security.world import Office, follow, office
from tests.shared.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
def live(guarded: Guarded, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """An app that is live, by its own users."""
    app = f"guarded-count{uuid.uuid4().hex[:4]}"
    with office(guarded, app, tmp_path_factory.mktemp("office"), lambda: spark) as found:
        found.make_live(1)
        yield found


def comes_to_all(found: Office, consumer: LiveConsumer, table: dict[str, int]) -> None:
    def all_there() -> bool:
        follow(consumer, table, 0.2)
        return table == found.expected()

    until("the follower has not got all", all_there, 120)


def test_each_role_does_its_work(live: Office) -> None:
    with pytest.raises(Refused, match="is not registered as a follower") as caught:
        LiveConsumer(live.app, group=live.group, settings=live.settings("follower"), earliest=True)
    assert f"switchyard register-follower {live.app} {live.group}" in caught.value.fix
    live.do("register-follower", live.app, live.group)
    table: dict[str, int] = {}
    with LiveConsumer(live.app, group=live.group, settings=live.settings("follower"), earliest=True) as consumer:
        comes_to_all(live, consumer, table)
        live.produce(50)
        comes_to_all(live, consumer, table)
    assert f"{live.app}.v1" in live.do("status").out
    assert live.user("driver") not in live.do("log", live.app).out
    assert asked_by(live.broker, live.user("driver")).denied == ()
    assert asked_by(live.broker, live.user("operator")).denied == ()


@pytest.mark.long
def test_a_driver_reports_a_revoked_login_and_continues_once_it_is_restored(
    live: Office, caplog: pytest.LogCaptureFixture
) -> None:
    user = live.user("driver")
    live.broker.revoke(user)
    live.produce(20)
    until("the driver does not say so", lambda: f"refuses the login of {user}: " in caplog.text, 90)
    assert "check sasl.mechanism, sasl.username and sasl.password" in caplog.text
    assert PLANTED not in caplog.text
    live.broker.add(user)
    # does nothing if it is registered already
    live.do("register-follower", live.app, live.group)
    table: dict[str, int] = {}
    with LiveConsumer(live.app, group=live.group, settings=live.settings("follower"), earliest=True) as consumer:
        comes_to_all(live, consumer, table)
    assert live.drivers.alive(f"{live.app}.v1")


@pytest.mark.long
def test_an_operator_recreates_the_dead_letter_topic_that_a_driver_may_not_create(
    live: Office, caplog: pytest.LogCaptureFixture
) -> None:
    release = f"{live.app}.v1"
    letters = dead_letter_topic(release)
    delete_topics(live.admin, [letters])
    said = f"{letters} of {release} is gone, and this login can't create it again"
    until("the driver does not say so", lambda: said in caplog.text, 60)
    live.produce_malformed()
    assert f"switchyard start {release} --execute" in live.do("status").out
    live.do("start", release, "--execute")
    until("the dead letter does not come", lambda: end_offsets(live.admin, [letters])[letters][0] > 0, 120)
    assert f"{release} has written" in live.do("dead-letters", release).out
    live.do("register-follower", live.app, live.group)
    live.produce(10)
    with LiveConsumer(live.app, group=live.group, settings=live.settings("follower"), earliest=True) as consumer:
        comes_to_all(live, consumer, {})
    assert live.drivers.alive(release) and letters not in live.do("status").out


# -- and nothing else


def writes(topic: str) -> Callable[[Office, Role], None]:
    def attempt(found: Office, role: Role) -> None:
        failed: list[KafkaError] = []
        name = topic.format(app=found.app)
        # what may not even be seen; a producer would ask again and again
        partition_count(found.settings(role), name)
        # an idempotent one would not even be given an id
        client = producer(found.settings(role), message_timeout_ms=20_000, linger_ms=0, enable_idempotence=False)
        client.produce(
            name, b"forged", b"key", partition=0,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
        assert client.flush(30) == 0
        if failed:
            raise KafkaException(failed[0])

    return attempt


def reads(topic: str) -> Callable[[Office, Role], None]:
    def attempt(found: Office, role: Role) -> None:
        partition_count(found.settings(role), topic.format(app=found.app))

    return attempt


def creates(topic: str) -> Callable[[Office, Role], None]:
    def attempt(found: Office, role: Role) -> None:
        name = topic.format(app=found.app)
        client = admin(found.settings(role))
        client.create_topics([NewTopic(name, 1, 1)])[name].result(30)

    return attempt


def deletes(topic: str) -> Callable[[Office, Role], None]:
    def attempt(found: Office, role: Role) -> None:
        name = topic.format(app=found.app)
        client = admin(found.settings(role))
        client.delete_topics([name])[name].result(30)

    return attempt


def commits(group: str) -> Callable[[Office, Role], None]:
    def attempt(found: Office, role: Role) -> None:
        moved = [TopicPartition(f"{found.app}.v1.g1", 0, 1)]
        wanted = [ConsumerGroupTopicPartitions(group.format(app=found.app), moved)]
        client = admin(found.settings(role))
        for future in client.alter_consumer_group_offsets(wanted).values():
            for partition in future.result(30).topic_partitions or ():
                if partition.error is not None:
                    raise KafkaException(partition.error)

    return attempt


def asks_about(group: str) -> Callable[[Office, Role], None]:
    def attempt(found: Office, role: Role) -> None:
        group_offsets(found.settings(role), group)

    return attempt


def fences(transactional_id: str) -> Callable[[Office, Role], None]:
    def attempt(found: Office, role: Role) -> None:
        client = producer(found.settings(role), transactional_id=transactional_id.format(app=found.app))
        client.init_transactions(20)

    return attempt


RESULT, INPUT, RELEASE = "{app}.v1.g1", "numbers-of-{app}", "{app}.v1"


@pytest.mark.parametrize(
    ("role", "attempt"),
    [
        ("driver", writes(INPUT)),
        ("driver", creates("{app}.v9.g1")),
        ("driver", deletes(RESULT)),
        ("driver", writes("{app}.delta.forged")),
        ("driver", commits("{app}-readers")),
        ("driver", reads("another-app.v1.g1")),
        ("driver", fences("another-app.v1")),
        ("operator", writes(RESULT)),
        ("operator", writes(INPUT)),
        ("operator", deletes(INPUT)),
        ("operator", creates("another-app.v1.g1")),
        ("operator", deletes(REGISTRY_TOPIC)),
        ("operator", commits("{app}-readers")),
        ("follower", reads(INPUT)),
        ("follower", writes(RESULT)),
        ("follower", writes(REGISTRY_TOPIC)),
        ("follower", deletes(RESULT)),
        ("follower", commits(RELEASE)),
        ("follower", asks_about("readers-of-another-app")),
        ("follower", fences(RELEASE)),
        ("follower", fences(REGISTRY_TOPIC)),
    ],
)
def test_a_role_can_not(live: Office, role: Role, attempt: Callable[[Office, Role], None]) -> None:
    with pytest.raises((KafkaException, Refused)) as caught:
        attempt(live, role)
    # an operator's word for it, or Kafka's
    assert isinstance(caught.value, Refused) or forbidden(caught.value.args[0]), caught.value


def test_what_a_role_may_not_see_of_a_topic_is_unknown_and_no_failure(live: Office) -> None:
    found = replication(live.settings("driver"), [*KAFKA_TOPICS, REGISTRY_TOPIC])
    assert found == {**dict.fromkeys(KAFKA_TOPICS, Replication()), REGISTRY_TOPIC: Replication(replicas=1)}
    seen = replication(live.settings("operator"), [*KAFKA_TOPICS, REGISTRY_TOPIC, f"{live.app}.v1.progress"])
    assert len(seen) == 4 and set(seen.values()) == {Replication(replicas=1, in_sync=1, unclean=False)}


def test_nothing_that_was_written_shows_a_password(live: Office, capfd: pytest.CaptureFixture[str]) -> None:
    """Spark's checkpoints, frozen code, what commands keep, and the topics themselves."""
    said = [live.do(*command) for command in (["status", "--json"], ["log", "--json"], ["operations"])]
    assert PLANTED not in "".join(each.text for each in said) + "".join(capfd.readouterr())
    kept = [path for path in (live.folder / "state").rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if PLANTED.encode() in path.read_bytes()]
    assert not [path for path in (live.broker.folder / "data").rglob("*.log") if PLANTED.encode() in path.read_bytes()]


@pytest.mark.long
def test_the_printed_commands_give_exactly_the_rights(guarded: Guarded, tmp_path: Path) -> None:
    (tmp_path / "admin.properties").write_text(
        "\n".join(f"{name}={value}" for name, value in java_properties(guarded.settings("admin", ADMIN)).items()
                  if "truststore" not in name)
        + f"\nssl.truststore.type=PEM\nssl.truststore.location={guarded.authority.file}\n"
    )  # fmt: skip
    found = rights("follower", "of-kafkas-tool", groups=["a-group"])
    for line in as_commands(found, "User:of-kafkas-tool", guarded.settings("admin").bootstrap):
        java = [
            find_java().path,
            "-Xmx128m",
            "-cp",
            ":".join(map(str, broker_jars())),
            "org.apache.kafka.tools.AclCommand",
        ]
        ended = subprocess.run(
            [*java, *shlex.split(line)[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
    wanted = {binding("of-kafkas-tool", right) for right in found}
    until("they are not there", lambda: set(bindings_of(guarded.admin, "of-kafkas-tool")) == wanted, 30)


def shows_no_password(found: Office, release: str) -> None:
    """Neither the log of a driver's process, with that of its JVM, nor the arguments of all processes."""
    log = found.drivers.log_path(release)
    assert log is not None and release in log.read_text()
    assert PLANTED not in log.read_text()
    arguments = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            arguments.append(path.read_bytes().decode(errors="replace"))
    assert any("pipelines.engine.start" in each and release in each for each in arguments)
    assert not [each for each in arguments if PLANTED in each]


@pytest.mark.long
def test_the_operations_on_several_releases_need_every_right_and_no_other(
    live: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second version, compared, live and back, retired; a reset, and what it has archived cleaned."""
    # entries; as if the registry were long
    monkeypatch.setattr("pipelines.kafka.snapshots.EVERY", 5)
    # what other tests have tried in vain
    before = {role: len(asked_by(live.broker, live.user(role)).denied) for role in ROLES}
    first, second = f"{live.app}.v1", f"{live.app}.v2"
    table: dict[str, int] = {}
    live.do("register-follower", live.app, live.group)
    with LiveConsumer(live.app, group=live.group, settings=live.settings("follower"), earliest=True) as consumer:
        again = ("--from", live.folder / "code", "--correction", "once more", "--execute")
        live.do("stage", live.app, "--version", 2, *again)
        live.drivers.processes.add(second)
        live.do("start", second, "--execute")
        live.do("wait", second, "--for", "100ms", "--timeout", "200s")
        shows_no_password(live, second)
        live.do("diff", second)
        live.do("promote", live.app, "--version", 2, "--execute")
        live.produce(50)
        comes_to_all(live, consumer, table)
        live.do("refresh", live.app)
        live.do("rollback", live.app, "--execute")
        live.produce(50)
        comes_to_all(live, consumer, table)
        live.do("stop", second, "--execute")
        live.do("retire", second, "--after", "0s", "--execute")
        live.do("reset", first, "--to-earliest", "--stop", "--execute")
        live.produce(50)
        comes_to_all(live, consumer, table)
        # a plan is enough, as nothing has moved the group
        live.cli("reset", first, "--to-current", "--stop")
        live.do("clean", first, "--after", "0s", "--execute")
    for role in ROLES:
        asked = asked_by(live.broker, live.user(role))
        unused = {as_asked(right) for right in live.rights(role)} - asked.used
        assert not unused, f"a {role} has used no right of {unused}"
        assert asked.denied[before[role] :] == ()


@pytest.mark.long
def test_an_operator_writes_tombstones_by_the_right_for_them(live: Office) -> None:
    operator = live.user("operator")
    every = rights("operator", live.app, inputs=[live.topic], groups=[live.group], tombstones=True)
    [more] = set(every) - set(live.rights("operator"))
    before = len(asked_by(live.broker, operator).denied)
    allow(live.broker, operator, [more])
    live.do("reset", f"{live.app}.v1", "--to-earliest", "--output", "tombstone", "--stop", "--execute")
    live.do("wait", f"{live.app}.v1", "--for", "100ms", "--timeout", "200s")
    asked = asked_by(live.broker, operator)
    assert as_asked(more) in asked.used and asked.denied[before:] == ()


NAMED = """
NAMES = StaticTable(topic="NAMES", key="k string", value=Json("name string NOT NULL"))


@app(name="NAME", inputs={**NUMBERS, "names": NAMES}, result=Table(key=("k",), partitions=2), suite="named_suite")
def named(numbers: DataFrame, names: DataFrame, settings: AppSettings) -> DataFrame:
    with_names = numbers.join(names, "k", "left")
    return with_names.groupBy("k").agg(F.count(F.lit(1)).alias("records"), F.sum("n").alias("total"))
"""
SUITE = """
from expectations.suites import base


def suite(inputs):
    return [base.not_empty()]
"""


@pytest.mark.long
def test_a_driver_s_login_is_enough_to_check_and_to_bisect_and_reads_no_static_table(live: Office) -> None:
    release, names = f"{live.app}.v3", f"names-of-{live.app}"
    ensure_topic(live.admin, names, 1, topics.INPUT)
    writer = producer(live.admin)
    writer.produce(names, b'{"name": "ann"}', b"k1", partition=0)
    assert writer.flush(60) == 0
    # who stages reads it
    allow(live.broker, live.user("operator"), rights("operator", live.app, inputs=[names], groups=[live.group]))
    code = live.folder / "named"
    code.mkdir()
    head = HEAD.replace("Stream, Table", "StaticTable, Stream, Table")
    text = (
        (head + NAMED).replace("TOPIC", live.topic).replace('"NAMES"', f'"{names}"').replace('"NAME"', f'"{live.app}"')
    )
    (code / "named.py").write_text(text)
    (code / "named_suite.py").write_text(SUITE)
    live.do("stage", live.app, "--version", 3, "--from", code, "--execute")
    live.do("start", release, "--execute")
    live.do("wait", release, "--for", "100ms", "--timeout", "200s")
    live.do("diff", release)
    checked = live.cli("check", release, role="driver")
    assert checked.code == 0 and "not empty" in checked.out, checked.text
    live.do("stop", release, "--execute")
    live.produce(10)
    tried = live.cli("bisect", release, role="driver")
    assert tried.code == 0 and "the next batch runs" in tried.out, tried.text
    assert not [each for each in asked_by(live.broker, live.user("driver")).denied if names in each]
