"""Records that this version can't read, on a real broker: followers and commands go on, or hold where they must."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.errors import Refused
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.log import FencedWriter
from pipelines.kafka.progress import newest_progress, progress_history
from pipelines.kafka.topics import HEARTBEATS, delete_topics, ensure_topic
from pipelines.model.entries import WantedSet
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC, progress_topic
from pipelines.settings import Settings
from tests.follow.cluster import Cluster, Release
from tests.follow.test_consumer import follower, rows, take, texts
from tests.shared.terminal import Terminal
from tests.shared.threads import Threads
from tests.shared.transactions import await_ends

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(broker: Settings) -> Iterator[Cluster]:
    made = Cluster(broker)
    yield made
    made.close()


def write(cluster: Cluster, *values: bytes) -> None:
    """Appends these bytes to the registry."""
    FencedWriter(cluster.settings, REGISTRY_TOPIC, REGISTRY_TOPIC).append(lambda: values)


def say(release: Release, value: bytes) -> None:
    """A record of a release's progress topic, committed. Readers see it."""
    release._producer.begin_transaction()
    release._producer.produce(progress_topic(release.name), value, "none", partition=0)
    release._producer.commit_transaction(60)
    await_ends(release.settings, progress_topic(release.name), 1)


def beat(settings: Settings, *values: bytes) -> None:
    """Records of the heartbeats topic, which has no others."""
    delete_topics(settings, [HEARTBEATS_TOPIC])
    ensure_topic(settings, HEARTBEATS_TOPIC, 1, HEARTBEATS)
    FencedWriter(settings, HEARTBEATS_TOPIC, "tests").append(lambda: values)
    await_ends(settings, HEARTBEATS_TOPIC, 1)


@pytest.mark.long
def test_entries_that_can_not_be_read_stop_nobody_and_are_shown_and_repaired(cluster: Cluster, tmp_path: Path) -> None:
    v1 = cluster.first()
    terminal = Terminal(cluster.settings, tmp_path, Threads(cluster.settings))
    with follower(cluster) as consumer:
        v1.batch(rows(1, 1))
        assert texts(take(consumer, 1)) == ["k1=v1"]
        write(cluster, b"garbage", json.dumps({"kind": "of-tomorrow", "actor": "\x1b[31mann"}).encode())
        v1.batch(rows(1, 2))
        assert texts(take(consumer, 1)) == ["k2=v1"]
        assert len(cluster.state.unread) == 2
        # it must be understood: what it says may be that this follower has to leave the result
        must = {"kind": "moved", "release": v1.name, "actor": "bob", "must_understand": True}
        write(cluster, json.dumps(must).encode(), json.dumps(must | {"release": "other.v1"}).encode())
        v1.batch(rows(1, 3))
        assert take(consumer, 1, timeout_s=1.0) == []
        with follower(cluster, "another") as begun:
            assert take(begun, 1, timeout_s=1.0) == []
        said = terminal.run("status")
        assert said.code == 0, said.text
        assert "4 entries of the registry can't be read by this version, 2 of them must not be ignored" in said.out
        said = terminal.run("status", "--json")
        assert json.loads(said.out)["unreadable_entries"] == 4
        said = terminal.run("registry", "check")
        assert said.code == 1 and "of-tomorrow" in said.out and "other.v1" in said.out and "\x1b" not in said.out
        said = terminal.run("log")
        assert said.code == 0 and said.out.count("can't be read") == 4
        held = next(u.offset for u in cluster.state.unread if v1.name in u.about)
        # a plan alone changes nothing
        assert terminal.run("registry", "repair", "--offset", held).code == 0 and len(cluster.state.unread) == 4
        said = terminal.run("registry", "repair", "--offset", held, "--execute")
        assert said.code == 0, said.text
        assert texts(take(consumer, 1)) == ["k3=v1"]
        said = terminal.run("registry", "repair", "--execute")
        assert said.code == 0, said.text
    said = terminal.run("registry", "check")
    assert (said.code, said.out) == (0, "every entry of the registry can be read\n")


def test_progress_and_heartbeats_that_can_not_be_read_are_shown(cluster: Cluster, tmp_path: Path) -> None:
    v1 = cluster.first()
    v1.batch(rows(1, 1))
    say(v1, b'{"release": "a newer one"}')
    beat(cluster.settings, b"\x1b[31mred", b"{}")
    terminal = Terminal(cluster.settings, tmp_path, Threads(cluster.settings))
    said = terminal.run("status")
    assert said.code == 0 and "2 heartbeats of the last minute can't be read by this version" in said.out
    assert json.loads(terminal.run("status", "--json").out)["unreadable_heartbeats"] == 2
    said = terminal.run("registry", "check")
    assert said.code == 1 and "every entry of the registry can be read" in said.out and "\x1b" not in said.out
    assert f"{v1.name}: the newest record of {progress_topic(v1.name)} can't be read" in said.out
    assert "2 heartbeats of the last minute can't be read" in said.out
    # it should run, and nobody can start it
    cluster.registry.step(lambda _: [WantedSet(release=v1.name, wanted="running")])
    assert f"{v1.name}: the newest record of {progress_topic(v1.name)} can't be read" in terminal.run("status").out
    found = json.loads(terminal.run("registry", "check", "--json").out)
    assert (found["unread"], [*found["unread_progress"]], found["unread_heartbeats"]) == ([], [v1.name], 2)
    v1.batch(rows(1, 2))
    await_ends(cluster.settings, progress_topic(v1.name), 1)
    assert json.loads(terminal.run("registry", "check", "--json").out)["unread_progress"] == {}
    # the topics that were made with one replica lack the second
    two = Terminal(cluster.settings.model_copy(update={"replication_factor": 2}), tmp_path, Threads(cluster.settings))
    found = json.loads(two.run("registry", "check", "--json").out)["may_lose_records"]
    assert len(found) == 1 and "1 of the 2 replicas" in found[0] and progress_topic(v1.name) in found[0]


def test_progress_that_can_not_be_read_moves_no_follower_and_is_refused_where_it_counts(cluster: Cluster) -> None:
    v1 = cluster.first()
    v1.batch(rows(1, 1))
    with follower(cluster) as consumer:
        assert texts(take(consumer, 1)) == ["k1=v1"]
        say(v1, b'{"release": "a newer one"}')
        with pytest.raises(Refused, match=f"the newest record of {progress_topic(v1.name)} can't be read"):
            newest_progress(cluster.settings, v1.name)
        v1.batch(rows(1, 2))
        assert texts(take(consumer, 1)) == ["k2=v1"]
    await_ends(cluster.settings, progress_topic(v1.name), 1)
    assert len(progress_history(cluster.settings, v1.name)) == 2


def test_a_heartbeat_that_can_not_be_read_is_left_out(broker: Settings, caplog: pytest.LogCaptureFixture) -> None:
    odd = {"release": "odd.v1", "generation": 1, "token": 1, "host": "h", "pid": 1, "at_ms": 1, "state": "running"}
    newer = {"schema_version": 2, "mood": "good", **odd, "release": "newer.v1"}
    beat(broker, b"garbage", json.dumps(odd | {"mood": "good"}).encode(), json.dumps(newer).encode())
    with caplog.at_level(logging.WARNING):
        assert {*latest_heartbeats(broker)} == {"newer.v1"}
    assert sum("can't be read as a heartbeat" in each.message for each in caplog.records) == 2
