"""A cluster of three brokers with TLS and logins, which are killed one after the other, in the middle of transactions and of
operations.

`SWITCHYARD_BROKER_KILLS` is the number of kills, `SWITCHYARD_KILLS_SEED` seeds which broker is killed and when.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.ledger import Ledger, check_log, check_result
from orchestration.operations.lifecycle import live_release
from orchestration.operations.looking.durability import cluster_notes, own_topics
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.switching import Align, AppendSwitch, FlagBoundary, Meet
from orchestration.operations.procedures.diff import diff
from orchestration.operations.procedures.wait import wait_ready
from pipelines.errors import Unavailable
from pipelines.kafka.client import admin
from pipelines.kafka.login import properties
from pipelines.kafka.progress import newest_progress
from pipelines.model.names import KAFKA_TOPICS, REGISTRY_TOPIC, progress_topic, result_topic
from pipelines.settings import Settings
from tests.e2e.brokers import Brokers, three_brokers
from tests.e2e.cluster import LARGE, Cluster, Follower
from tests.e2e.harness import code_without_suite, open_transactions, uncommitted
from tests.shared.stages import before_stage
from tests.shared.waiting import Deadline, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]

KILLS = int(os.environ.get("SWITCHYARD_BROKER_KILLS", "4"))
SEED = int(os.environ.get("SWITCHYARD_KILLS_SEED", "1"))
# a window's state and its table, and a stream
APPS = {"stock-stats": "trades", "large-orders": "orders"}
# A partition whose leader is dead gets its records half a minute later. Events pass ten times as slowly as real time, so
# that these are not late: no result contains late rows, and which are late depends on batches
HISTORY, PER_SECOND, RATE = 20_000, 1_000, 100
RECOVERY_S = 120.0
# the stages of a switch before which a broker may be killed
OF_A_SWITCH = (Align, FlagBoundary, Meet, AppendSwitch)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with three_brokers(tmp_path_factory.mktemp("brokers")) as found:
        yield found


@pytest.fixture
def cluster(brokers: Brokers, spark: SparkSession, tmp_path: Path) -> Iterator[Cluster]:
    settings = brokers.settings.model_copy(update={"state_dir": tmp_path / "state"})
    # a switch waits for the dead broker's successor
    found = Cluster(settings, tmp_path, lambda: spark, switch_timeout_s=RECOVERY_S)
    try:
        yield found
    finally:
        found.close()


class Killer:
    """Kills brokers at a seeded random moment, and counts those that led a partition with an open transaction."""

    def __init__(self, brokers: Brokers, cluster: Cluster) -> None:
        self.brokers, self.cluster = brokers, cluster
        self.random = random.Random(SEED)
        self.in_transaction = 0

    def kill(self, releases: list[str]) -> int:
        """Kills one broker in the middle of a transaction of one of `releases`. Returns which."""
        settings, topics = self.cluster.settings, self._topics(self.random.choice(releases))
        # early in a transaction, or between its last record and its commit
        watched = dict([self.random.choice(list(topics.items()))])
        deadline = Deadline("no transaction was open", RECOVERY_S)
        client = admin(settings)
        with closing(uncommitted(settings, watched)) as records:
            while (record := records.poll(0.2)) is None or record.error() is not None:
                deadline.check()
            topic, partition = record.topic(), record.partition()
            assert topic is not None and partition is not None
            node = self.brokers.leader_of(settings, topic, partition)
            self.in_transaction += bool(open_transactions(settings, topics, client))
            self.brokers.kill(node)
        return node

    def kill_leader(self, topic: str) -> int:
        """Kills the broker that leads a topic of one partition. Returns which."""
        node = self.brokers.leader_of(self.cluster.settings, topic, 0)
        self.brokers.kill(node)
        return node

    def _topics(self, release: str) -> dict[str, int]:
        known = self.cluster.state.releases[release]
        return {known.result_topics[""]: known.spec.partitions, progress_topic(release): 1}


def test_nothing_is_lost_or_doubled_though_brokers_are_killed(
    brokers: Brokers, cluster: Cluster, tmp_path: Path
) -> None:
    first = {app: code_without_suite(tmp_path / app, app.replace("-", "_")) for app in APPS}
    followers = []
    for app in APPS:
        cluster.load(app, HISTORY, PER_SECOND)
        cluster.hydrate(app, 1, batch=LARGE, code_dir=first[app])
        cluster.make_live(app, 1)
        cluster.hydrate(app, 2, batch=LARGE, code_dir=first[app], correction="compared across lost brokers")
        followers.append(Follower(cluster, app, f"billing-of-{app}"))
    _secure_the_topics(brokers, cluster)
    names = [f"{app}.v{version}" for app in APPS for version in (1, 2)]
    killer = Killer(brokers, cluster)
    with followers[0], followers[1]:
        with (
            cluster.producing("stock-stats", RATE, PER_SECOND),
            cluster.producing("large-orders", RATE, PER_SECOND),
        ):
            for turn in range(KILLS):
                _lose_a_broker(killer, names, turn)
        for name in names:
            cluster.settle(name, APPS[name.partition(".")[0]])
        print(f"{KILLS} kills, {killer.in_transaction} with an open transaction")
        login = properties(cluster.settings)
        for name in names:
            topic = result_topic(name, 1)
            ledger = check_result(name.partition(".")[0], cluster.settings.bootstrap, topic, properties=login)
            assert ledger.clean and ledger.records > 0, f"{name}: {ledger.as_json()}"
        for app, follower in zip(APPS, followers, strict=True):
            _await_all(cluster, app, follower, login)
    assert killer.in_transaction > 0


def _secure_the_topics(brokers: Brokers, cluster: Cluster) -> None:
    """Nobody warns of a topic that Switchyard has created; of Kafka's own there is one to mend."""

    def notes() -> list[str]:
        context = cluster.context()
        found = context.cluster.replication(own_topics(cluster.state.releases.values()))
        assert set(KAFKA_TOPICS) < set(found) and len(found) > len(APPS) * 4
        return list(cluster_notes(cluster.settings, found))

    [note] = notes()
    assert note.startswith("__consumer_offsets has 3 replicas and min.insync.replicas=1: ")
    brokers.configure(cluster.settings, "__consumer_offsets", {"min.insync.replicas": "2"})
    cluster.until("the note stays", lambda: notes() == [])


def _lose_a_broker(killer: Killer, names: list[str], turn: int) -> None:
    """Kills a broker, and starts it again once all releases have committed without it. In two turns, consumers move: one app's
    when the broker dies, the other's afterwards.
    """
    brokers, cluster = killer.brokers, killer.cluster
    brokers.await_in_sync(cluster.settings)
    before = {name: _batch(cluster.settings, name) for name in names}
    moving, following = list(APPS) if turn in (KILLS // 2, KILLS - 1) else (None, None)
    at, node = time.monotonic(), killer.kill(names) if moving is None else _lose_in_a_switch(killer, names, moving)
    cluster.until(
        "a release commits nothing more",
        lambda: all(_batch(cluster.settings, name) > batch + 1 for name, batch in before.items()),
        timeout_s=RECOVERY_S,
    )
    print(f"kill {turn + 1}: broker {node}, all releases commit again after {time.monotonic() - at:.1f} s")
    if following is not None:
        _await_ready(cluster, names)
        cluster.run(_move(cluster, following))
    brokers.start(node)


def _lose_in_a_switch(killer: Killer, names: list[str], app: str) -> int:
    """Moves the consumers of `app`. Before one of the stages, the broker dies that the operation or a driver writes to. The
    operation goes on by itself.
    """
    cluster, killed = killer.cluster, list[int]()
    _await_ready(cluster, names)
    plan, stage = _move(cluster, app), killer.random.choice(OF_A_SWITCH)
    topic = REGISTRY_TOPIC if plan.operation is Kind.PROMOTE else progress_topic(killer.random.choice(plan.releases))

    def kill() -> None:
        # an operation that an outage interrupts applies the stage again
        if not killed:
            killed.append(killer.kill_leader(topic))

    at = time.monotonic()
    with before_stage(stage, kill):
        cluster.run(plan)
    print(f"{plan.id} took {time.monotonic() - at:.1f} s: the leader of {topic} was killed before {stage.__name__}")
    closed = cluster.state.known_operations[plan.id].closed
    assert closed is not None and closed.outcome == "done"
    return killed[0]


def _await_ready(cluster: Cluster, names: list[str]) -> None:
    for name in names:
        wait_ready(cluster.context(), name, for_s=0.5, timeout_s=RECOVERY_S)


def _move(cluster: Cluster, app: str) -> Plan:
    """A plan that moves consumers to the second version, or back from there."""
    live = live_release(cluster.state, app)
    if live is not None and live.spec.version == 2:
        return plan_rollback(cluster.context(), app)
    diff(cluster.context(), f"{app}.v2")
    return plan_promote(cluster.context(), app, version=2)


def _await_all(cluster: Cluster, app: str, follower: Follower, login: Mapping[str, str]) -> None:
    """Waits until a follower has got all results, each once."""
    judged: list[Ledger] = []

    def clean() -> bool:
        judged[:] = [check_log(app, cluster.settings.bootstrap, follower.log, properties=login)]
        return judged[0].clean and judged[0].records > 0

    try:
        until(f"the follower of {app} has not got all results", clean, 60, poll_s=1.0)
    except AssertionError as error:
        raise AssertionError(f"{error}: {judged[0].as_json()}") from None


def _batch(settings: Settings, name: str) -> int:
    """The newest batch of a release; -1: it has none, or the next leader of its progress does not answer yet."""
    try:
        found = newest_progress(settings, name)
    except Unavailable:
        return -1
    return -1 if found is None else found.boundary.batch_id
