"""A batch is bounded in bytes, too: by what a sample of the input says of its records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.kafka.client import producer
from pipelines.kafka.progress import progress_history
from pipelines.kafka.sizes import _places, record_bytes
from pipelines.kafka.topics import ensure_topic
from pipelines.model.reset import records_in
from pipelines.settings import Settings
from tests.reset.world import live_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_batch_holds_at_least_a_record_and_no_more_than_is_allowed() -> None:
    assert records_in(1000, 10, 500) == 100
    assert records_in(1000, 10, 50) == 50
    assert records_in(1000, 5000, 50) == 1
    # nothing is known, or there are tombstones without a key
    assert records_in(1000, None, 50) == records_in(1000, 0, 50) == 50


@given(st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 1000), st.integers(0, 1000))))
def test_samples_are_taken_where_there_is_something(spans: dict[int, tuple[int, int]]) -> None:
    there = {p for p, (begin, end) in spans.items() if end > begin}
    found = _places(spans)
    assert bool(found) == bool(there)
    for places in found:
        assert places.keys() == there
        assert all(spans[p][0] <= offset < spans[p][1] for p, offset in places.items())


@pytest.fixture
def topic(broker: Settings) -> str:
    name = f"sizes-{uuid4().hex[:8]}"
    ensure_topic(broker, name, 2, {"retention.ms": "-1"})
    return name


def send(settings: Settings, topic: str, value_bytes: int, count: int, *, partition: int = 0) -> None:
    client = producer(settings)
    for _ in range(count):
        client.produce(topic, b"v" * value_bytes, b"key", partition=partition)
    assert client.flush(30) == 0


@pytest.mark.broker
def test_the_largest_of_what_is_there_counts(broker: Settings, topic: str) -> None:
    both: dict[str, dict[int, int]] = {topic: {0: 0, 1: 0}}
    assert record_bytes(broker, both) is None
    send(broker, topic, 97, 1000)
    assert record_bytes(broker, both) == 100
    # at its end they are larger, which the beginning doesn't tell
    send(broker, topic, 997, 300)
    assert record_bytes(broker, both) == 1000
    other = f"{topic}-other"
    ensure_topic(broker, other, 1, {"retention.ms": "-1"})
    send(broker, other, 1997, 3)
    assert record_bytes(broker, {**both, other: {}}) == 2000
    # from where it is read on, and nothing is left
    assert record_bytes(broker, {topic: {0: 1300}}) is None


@pytest.mark.spark
@pytest.mark.broker
def test_a_driver_reads_no_more_at_once(broker: Settings, spark: SparkSession, tmp_path: Path) -> None:
    with live_world(broker, spark, "count", tmp_path, max_bytes_per_batch=500) as world:
        batches = [p.batch.rows_in for p in progress_history(world.settings, world.name)]
        sizes = [len(r.key or "") + len(r.value or "") for r in world.records()]
    assert sum(batches) == 200 and max(batches) <= 500 // (sum(sizes[-100:]) // 100) < 60
    assert max(batches) >= 30, "nor much less"
