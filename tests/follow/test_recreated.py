"""A topic that is deleted and recreated after the broker was restarted: Kafka's client then takes its leader for an old
one, and reads nothing any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestration.local.broker import EmbeddedBroker
from pipelines.follow.consumer import LiveConsumer
from pipelines.kafka.topics import APPEND_ONLY, delete_topics, ensure_topic
from pipelines.model.names import REGISTRY_TOPIC, progress_topic
from pipelines.settings import Settings
from tests.follow.cluster import Cluster, Release
from tests.shared.ports import port_of

pytestmark = pytest.mark.broker


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state", broker_port=port_of("recreated"), broker_heap_mb=256)


@pytest.fixture
def own(settings: Settings) -> Iterator[EmbeddedBroker]:
    """A broker of the test's own, which it may restart."""
    found = EmbeddedBroker(settings)
    found.start()
    ensure_topic(settings, REGISTRY_TOPIC, 1, APPEND_ONLY)
    yield found
    found.stop()


def next_value(follower: LiveConsumer, timeout_s: float = 60) -> bytes | None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        record = follower.poll(0.5)
        if record is not None:
            return record.value
    raise AssertionError("the follower gets nothing more")


def recreate_progress(cluster: Cluster, name: str) -> Release:
    """Deletes the progress topic of a release, and creates it again, as a reset does. Returns its new writer."""
    delete_topics(cluster.settings, [progress_topic(name)])
    return Release(cluster.settings, name, cluster.partitions)


def outlives_a_restart(own: EmbeddedBroker, follower: LiveConsumer, writer: Release, value: str) -> None:
    """Restarts the broker, and has the follower read one more record."""
    own.stop()
    own.start()
    writer.batch([(0, "a", value)])
    assert next_value(follower) == value.encode()


def test_a_follower_reads_on_when_its_progress_topic_was_recreated(own: EmbeddedBroker, settings: Settings) -> None:
    cluster = Cluster(settings)
    live = cluster.first()
    live.batch([(0, "a", "1")])
    with LiveConsumer(cluster.alias, group="readers", settings=settings, earliest=True) as follower:
        assert next_value(follower) == b"1"
        outlives_a_restart(own, follower, live, "2")
        again = recreate_progress(cluster, live.name)
        again.batch([(0, "a", "3")])
        assert next_value(follower) == b"3"
        again.batch([(1, "b", "4")])
        assert next_value(follower) == b"4"
        # the same while it reads another result
        other = cluster.release(2)
        cluster.switch(again, other)
        other.batch([(0, "c", "5")])
        assert next_value(follower) == b"5"
        outlives_a_restart(own, follower, other, "6")
        back = recreate_progress(cluster, live.name)
        back.batch()
        cluster.switch(other, back)
        back.batch([(0, "a", "7")])
        assert next_value(follower) == b"7"
    cluster.registry.close()
