"""History whose partitions are of different times: nothing of it is late that was in time when it came."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.operations import release as rel
from pipelines.kafka.client import producer
from pipelines.kafka.progress import progress_history
from pipelines.model.history import Look, is_skewed, slices
from pipelines.model.positions import SourcePosition
from pipelines.settings import Settings
from tests.reset.world import START_MS, world_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELAY_MS = 10_000
NOW_MS = 2_000_000
History = list[list[int]]
histories = st.lists(st.lists(st.integers(0, NOW_MS - 1), max_size=60).map(sorted), min_size=1, max_size=4)


def at(*offsets: int) -> SourcePosition:
    return SourcePosition(sources={"trades": dict(enumerate(offsets))})


def end_of(history: History) -> SourcePosition:
    return at(*map(len, history))


def look_in(history: History) -> Look:
    """As Kafka answers: the first record at or after a time; of a partition without one, nothing."""

    def look(ms: int) -> SourcePosition:
        found = {
            p: next(o for o, t in enumerate(times) if t >= ms) for p, times in enumerate(history) if times[-1:] >= [ms]
        }
        return SourcePosition(sources={"trades": found})

    return look


def late(history: History, ends: list[SourcePosition]) -> int:
    """Records that are behind the watermark when their batch begins, of batches that end there."""
    count, newest, here = 0, -(10**9), at(*[0] * len(history))
    for end in ends:
        batch = [
            t for p, times in enumerate(history) for t in times[here.sources["trades"][p] : end.sources["trades"][p]]
        ]
        count += sum(t < newest - DELAY_MS for t in batch)
        newest, here = max([newest, *batch]), end
    return count


def by_shares(history: History, records: int) -> list[SourcePosition]:
    """Where batches end that take of each partition its share of what is left, as Spark's do."""
    end, found, here = end_of(history).sources["trades"], [], dict.fromkeys(range(len(history)), 0)
    while here != end:
        left = {p: end[p] - here[p] for p in end if end[p] > here[p]}
        total = sum(left.values())
        for p, size in left.items():
            here[p] = min(end[p], here[p] + max(1, int(records * size / total)))
        found.append(at(*here.values()))
    return found


@given(histories, st.integers(1, 30))
def test_slices_lead_from_the_beginning_to_the_end_and_nothing_in_them_is_late(history: History, records: int) -> None:
    begin, end = at(*[0] * len(history)), end_of(history)
    steps = slices(begin, end, look_in(history), NOW_MS, records)
    ends = [begin, *(step.end for step in steps)]
    assert ends[-1] == end
    for before, after in pairwise(ends):
        assert after.dominates(before) and after != before
        times = {t for p, all_ in enumerate(history) for t in all_[before.sources["trades"][p] : after.sources["trades"][p]]}  # fmt: skip
        # more than was asked for only where times don't tell records apart
        assert after.records_since(before) <= records or len(times) == 1
    assert late(history, ends[1:]) == 0


def test_slices_lie_between_where_it_begins_and_where_it_is_to_end() -> None:
    history = [list(range(0, 1000, 10)), list(range(0, 1000, 10))]
    steps = slices(at(50, 20), at(80, 90), look_in(history), NOW_MS, 20)
    assert steps[-1].end == at(80, 90) and all(step.end.dominates(at(50, 20)) for step in steps)
    # what is dated in the future is in none
    assert slices(at(0, 0), end_of(history), look_in(history), 500, 1000)[-1].end == at(50, 50)


@pytest.mark.parametrize(
    ("history", "skewed"),
    [
        # the same times, whatever their number
        ([list(range(0, 400_000, 1000)), list(range(0, 400_000, 4000))], False),
        # one holds the last of it alone
        ([list(range(0, 400_000, 1000)), list(range(350_000, 400_000, 1000))], True),
        # one is dense at first, the other at last
        ([[*range(0, 40_000, 100), 400_000], [0, *range(360_000, 400_000, 100)]], True),
        ([list(range(0, 400_000, 1000)), []], False),
    ],
)
def test_it_is_skewed_where_shares_make_rows_late(history: History, skewed: bool) -> None:
    begin, end, look = at(*[0] * len(history)), end_of(history), look_in(history)
    steps = slices(begin, end, look, NOW_MS, 20)
    assert is_skewed(begin, end, steps, look, DELAY_MS) is skewed
    assert (late(history, by_shares(history, 20)) > 0) is skewed


@pytest.mark.spark
@pytest.mark.broker
def test_a_partition_that_holds_only_recent_data_makes_nothing_late(
    broker: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    settings = broker.model_copy(update={"trigger_s": 0.1, "heartbeat_s": 0.2, "max_records_per_batch": 100})
    with world_of(settings, spark, "windowed", tmp_path) as world:
        client = producer(settings)
        # the first tells of 200 s more, the second of their last 10
        for partition, number in [*((0, n) for n in range(400)), *((1, n) for n in range(380, 400))]:
            value = json.dumps({"n": number})
            client.produce(world.topic, value, f"k{number % 7}", timestamp=START_MS + number * 500, partition=partition)
        assert client.flush(30) == 0
        world.run(rel.plan_start(world.context, world.name))
        world.settle()
        assert world.result() == world.expected({})
        batches = progress_history(settings, world.name)
        assert batches[-1].total.late_dropped == 0
        assert max(p.batch.rows_in for p in batches) <= 100
        # and goes on by itself
        world.produce(20)
        world.settle()
