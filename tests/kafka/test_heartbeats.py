"""Reading heartbeats back: the newest of each release's newest driver."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from pipelines.kafka import heartbeats
from pipelines.kafka.client import producer
from pipelines.kafka.clock import now_ms
from pipelines.kafka.heartbeats import Heartbeats, latest_heartbeats
from pipelines.kafka.kept import Kept
from pipelines.kafka.topics import HEARTBEATS, delete_topics, ensure_topic
from pipelines.model.names import HEARTBEATS_TOPIC
from pipelines.model.progress import Heartbeat, read_heartbeat
from pipelines.settings import Settings

pytestmark = pytest.mark.broker


def beat(release: str, token: int, state: str) -> Heartbeat:
    return Heartbeat(release=release, generation=1, token=token, host="h", pid=1, at_ms=now_ms(), state=state)


def test_a_driver_that_was_superseded_does_not_hide_the_one_that_runs(broker: Settings) -> None:
    ensure_topic(broker, HEARTBEATS_TOPIC, 1, HEARTBEATS)
    one, other = (f"sums-{uuid.uuid4().hex[:8]}.v1" for _ in range(2))
    client = producer(broker, linger_ms=0)
    said = [beat(one, 1, "running"), beat(one, 2, "starting"), beat(other, 1, "running"), beat(one, 2, "running")]
    for each in [*said, beat(one, 1, "superseded")]:
        client.produce(HEARTBEATS_TOPIC, each.model_dump_json(), each.release, partition=0)
    client.produce(HEARTBEATS_TOPIC, b"not a heartbeat", one, partition=0)
    assert client.flush(30) == 0
    found = latest_heartbeats(broker)
    assert (found[one].token, found[one].state) == (2, "running")
    assert found[other].state == "running"


def send(broker: Settings, *said: Heartbeat) -> None:
    client = producer(broker, linger_ms=0)
    for each in said:
        client.produce(HEARTBEATS_TOPIC, each.model_dump_json(), each.release, partition=0)
    assert client.flush(30) == 0


@pytest.fixture
def heard(broker: Settings) -> Iterator[Heartbeats]:
    """As one process keeps it for repeated calls."""
    ensure_topic(broker, HEARTBEATS_TOPIC, 1, HEARTBEATS)
    kept = Kept(broker)
    yield Heartbeats(broker, kept)
    kept.close()


def test_each_call_reads_only_the_records_since_the_previous_one(
    broker: Settings, heard: Heartbeats, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"sums-{uuid.uuid4().hex[:8]}.v1"
    read: list[bytes] = []

    def read_and_count(data: bytes) -> Heartbeat:
        read.append(data)
        return read_heartbeat(data)

    monkeypatch.setattr(heartbeats, "read_heartbeat", read_and_count)
    send(broker, beat(name, 2, "starting"))
    assert heard.latest()[name].state == "starting"
    read.clear()
    assert heard.latest()[name].state == "starting"
    assert read == []
    send(broker, beat(name, 2, "running"), beat(name, 1, "superseded"))
    assert heard.latest(window_s=10)[name].state == "running"
    assert len(read) == 2


def test_a_silent_release_is_forgotten_and_a_longer_window_finds_it_again(broker: Settings, heard: Heartbeats) -> None:
    name = f"sums-{uuid.uuid4().hex[:8]}.v1"
    send(broker, beat(name, 1, "running"))
    assert name in heard.latest(window_s=3_600)
    assert name not in heard.latest(window_s=60, now_ms=now_ms() + 120_000)
    # what the previous call forgot is read again
    assert name not in heard.latest(window_s=60, now_ms=now_ms() + 3_600_000)
    assert name in heard.latest(window_s=60)


def test_a_topic_that_was_deleted_and_created_again_is_read_from_its_start(broker: Settings, heard: Heartbeats) -> None:
    old, new = (f"sums-{uuid.uuid4().hex[:8]}.v1" for _ in range(2))
    send(broker, *(beat(old, 1, "running") for _ in range(5)))
    assert old in heard.latest()
    delete_topics(broker, [HEARTBEATS_TOPIC])
    assert heard.latest() == {}
    ensure_topic(broker, HEARTBEATS_TOPIC, 1, HEARTBEATS)
    send(broker, beat(new, 1, "running"))
    assert set(heard.latest()) == {new}


def test_nothing_is_told_of_a_driver_that_has_been_silent(broker: Settings) -> None:
    ensure_topic(broker, HEARTBEATS_TOPIC, 1, HEARTBEATS)
    name = f"sums-{uuid.uuid4().hex[:8]}.v1"
    send(broker, beat(name, 1, "running"))
    assert name in latest_heartbeats(broker, window_s=60)
    assert latest_heartbeats(broker, window_s=60, now_ms=now_ms() + 3_600_000) == {}


@pytest.mark.parametrize("off_ms", [-3_600_000, 3_600_000, 10**12])
def test_a_driver_is_heard_by_the_broker_s_clock_whatever_its_own_says(broker: Settings, off_ms: int) -> None:
    ensure_topic(broker, HEARTBEATS_TOPIC, 1, HEARTBEATS)
    name = f"sums-{uuid.uuid4().hex[:8]}.v1"
    before = now_ms()
    said = beat(name, 1, "running").model_copy(update={"at_ms": before + off_ms})
    client = producer(broker, linger_ms=0)
    client.produce(HEARTBEATS_TOPIC, said.model_dump_json(), name, partition=0, timestamp=before - 7_200_000)
    assert client.flush(30) == 0
    assert before <= latest_heartbeats(broker)[name].at_ms <= now_ms()


def test_where_someone_has_deleted_the_topic_nobody_is_heard(broker: Settings) -> None:
    ensure_topic(broker, HEARTBEATS_TOPIC, 1, HEARTBEATS)
    delete_topics(broker, [HEARTBEATS_TOPIC])
    assert latest_heartbeats(broker) == {}
