"""A batch is also limited in bytes, by a sample of the input's records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import Refused
from pipelines.kafka.client import producer
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.progress import progress_history
from pipelines.kafka.sizes import average, places_of, sizes_of, spans_of
from pipelines.kafka.topics import ensure_topic
from pipelines.model.limits import ASSUMED_BYTES, Limits, Size, limits_of
from pipelines.settings import Settings
from tests.reset.world import live_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def limits(sizes: dict[str, Size | None], *, together: bool = False, at_most: int = 10_000) -> Limits:
    return limits_of(sizes, batch_bytes=100_000, at_most=at_most, together=together)


def test_a_batch_holds_at_least_a_record_and_no_more_than_is_allowed() -> None:
    def of(record_bytes: int, at_most: int = 10_000) -> Limits:
        return limits({"a": Size(record_bytes=record_bytes, records=7)}, at_most=at_most)

    assert (of(100).total, of(100).by_source, of(100).full) == (1000, {"a": 1000}, 500)
    assert of(100, at_most=50).total == 50
    assert (of(500_000).total, of(500_000).full) == (1, 1)
    # tombstones without a key
    assert of(0).total == 10_000


def test_of_a_topic_that_is_filled_later_something_is_assumed() -> None:
    assert limits({"a": None}).total == 100_000 // ASSUMED_BYTES


ORDERS = {"orders": Size(record_bytes=100, records=1_000_000), "catalog": Size(record_bytes=5_000, records=3)}


def test_a_few_large_records_of_one_input_do_not_hold_up_another() -> None:
    found = limits(dict(ORDERS))
    assert found.by_source == {"orders": 500, "catalog": 10}
    # both together are no larger than a batch may be
    assert sum(found.by_source[name] * size.record_bytes for name, size in ORDERS.items()) <= 100_000
    assert found.full == 5


def test_where_a_batch_is_bounded_as_a_whole_no_input_is_cut_short() -> None:
    found = limits(dict(ORDERS), together=True)
    assert found.total == 1000 and set(found.by_source.values()) == {1000}


OFFSETS = st.dictionaries(st.integers(0, 5), st.integers(0, 1000))


@pytest.mark.slow
@given(OFFSETS, OFFSETS, OFFSETS)
def test_samples_are_taken_where_there_is_something(
    first: dict[int, int], start: dict[int, int], end: dict[int, int]
) -> None:
    spans = spans_of(first, start, end)
    assert spans.keys() == {p for p, last in end.items() if last > first.get(p, 0)}
    found = places_of(spans)
    assert bool(found) == bool(spans)
    for places in found:
        assert places.keys() == spans.keys()
        assert all(first.get(p, 0) <= offset < end[p] for p, offset in places.items())
    for p, (begin, last) in spans.items():
        # records already read count if few are left
        assert begin <= start.get(p, 0) or begin == max(first.get(p, 0), last - 100) or begin == first.get(p, 0)


def test_a_large_record_among_few_is_not_taken_for_all_of_them() -> None:
    assert average([[100] * 99 + [900_000], [900_000]]) == (99 * 100 + 900_000) // 100
    assert average([[100] * 3, [500]]) == 200
    assert average([[100] * 60, [300] * 60]) == 300
    assert average([]) is None and average([[]]) is None


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
    assert sizes_of(broker, both) == {topic: None}
    send(broker, topic, 97, 1000)
    assert sizes_of(broker, both) == {topic: Size(record_bytes=100, records=1000)}
    # the last records are larger, which the first ones don't show
    send(broker, topic, 997, 300)
    other = f"{topic}-other"
    ensure_topic(broker, other, 1, {"retention.ms": "-1"})
    send(broker, other, 1997, 3)
    found = sizes_of(broker, {**both, other: {}})
    assert found == {topic: Size(record_bytes=1000, records=1300), other: Size(record_bytes=2000, records=3)}
    # nothing is left to read: the earlier records count
    assert sizes_of(broker, {topic: {0: 1300}}) == {topic: Size(record_bytes=1000, records=100)}
    with pytest.raises(Refused, match=f"no topic {topic}-none"):
        sizes_of(broker, {f"{topic}-none": {}})


@pytest.mark.spark
@pytest.mark.broker
def test_a_driver_reads_no_more_bytes_in_a_batch(broker: Settings, spark: SparkSession, tmp_path: Path) -> None:
    with live_world(broker, spark, "count", tmp_path, max_bytes_per_batch=500) as world:
        heard = latest_heartbeats(world.settings).get(world.name)
        batches = [p.batch.rows_in for p in progress_history(world.settings, world.name)]
        sizes = [len(r.key or "") + len(r.value or "") for r in world.records()]
    assert sum(batches) == 200 and max(batches) <= 500 // (sum(sizes[-100:]) // 100) < 60
    assert heard is not None and heard.batch_records == 500 // max(sum(sizes[:100]) // 100, sum(sizes[-100:]) // 100)
    assert max(batches) >= 30, "nor much less"
