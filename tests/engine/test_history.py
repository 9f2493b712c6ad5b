"""History whose partitions cover different times: no record that was in time originally is late in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestration.operations.procedures.wait import wait_ready
from pipelines.engine import boot, query
from pipelines.engine.batch_writer import BatchWriter
from pipelines.engine.sink import Sink
from pipelines.engine.writer import OutcomeUnknown
from pipelines.errors import Unavailable
from pipelines.kafka.client import await_connection, producer
from pipelines.kafka.progress import progress_history
from pipelines.model.history import Look, portion, share
from pipelines.model.limits import Limits
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Progress
from pipelines.model.reset import Target
from pipelines.settings import Settings
from tests.reset.world import START_MS, World, world_of
from tests.shared.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELAY_MS = 10_000
NOW_MS = 2_000_000
History = list[list[int]]
histories = st.lists(st.lists(st.integers(0, NOW_MS - 1), max_size=60).map(sorted), min_size=1, max_size=4)


def at(*offsets: int) -> SourcePosition:
    return SourcePosition(sources={"trades": dict(enumerate(offsets))})


def end_of(history: History) -> SourcePosition:
    return at(*map(len, history))


def look_in(history: History) -> Look:
    """Answers as Kafka does: the first record at or after a time; no answer for a partition without one."""

    def look(ms: int) -> SourcePosition:
        found = {
            p: next(o for o, t in enumerate(times) if t >= ms) for p, times in enumerate(history) if times[-1:] >= [ms]
        }
        return SourcePosition(sources={"trades": found})

    return look


def times_between(history: History, before: SourcePosition, after: SourcePosition) -> list[int]:
    return [
        t
        for p, times in enumerate(history)
        for t in times[before.sources["trades"][p] : after.sources["trades"][p]]
    ]  # fmt: skip


def portions(history: History, begin: SourcePosition, records: int, now_ms: int = NOW_MS) -> list[SourcePosition]:
    found = [begin]
    while (end := portion(found[-1], end_of(history), look_in(history), now_ms, records)) is not None:
        found.append(end)
    return found


def late(history: History, ends: list[SourcePosition]) -> int:
    """Counts records that are before the watermark when their batch starts, for batches with these ends."""
    count, newest = 0, -(10**9)
    for before, after in pairwise(ends):
        batch = times_between(history, before, after)
        count += sum(t < newest - DELAY_MS for t in batch)
        newest = max([newest, *batch])
    return count


@given(histories, st.integers(1, 30))
def test_portions_lead_to_the_last_one_and_nothing_in_them_is_late(history: History, records: int) -> None:
    begin, end = at(*[0] * len(history)), end_of(history)
    ends = portions(history, begin, records)
    for before, after in pairwise(ends):
        assert after.dominates(before) and after != before and end.dominates(after)
        # more records than asked for only if they all have the same time
        alone = len(set(times_between(history, before, after))) == 1
        assert after.records_since(before) <= records or alone
    # the rest is one batch
    assert end.records_since(ends[-1]) <= records
    assert late(history, [*ends, end]) == 0


@given(histories, st.integers(5, 30))
@example([[0] * 6], 5)
def test_portions_are_nine_tenths_full_or_as_full_as_their_times_allow(history: History, records: int) -> None:
    begin, end = at(*[0] * len(history)), end_of(history)
    for before, after in pairwise(portions(history, begin, records)):
        # the portion up to the end has none after it, so it must be full
        following = min(times_between(history, after, end), default=-1)
        with_it = sum(t <= following for t in times_between(history, before, end))
        assert after.records_since(before) >= 0.9 * records or with_it > records


def test_few_questions_are_asked_where_records_lie_evenly() -> None:
    times = list(range(0, NOW_MS, 20))
    history, asked = [times, times], []

    def look(ms: int) -> SourcePosition:
        asked.append(ms)
        return at(*[min(-(-ms // 20), len(times))] * 2)

    assert portion(at(0, 0), end_of(history), look, NOW_MS, 10_000) is not None
    assert len(asked) <= 4


def test_a_portion_goes_on_from_where_the_release_stands() -> None:
    times = list(range(0, 1000, 10))
    ends = portions([times, times], at(50, 20), 30)
    # the partition that is behind comes first
    assert ends[1].sources["trades"][0] == 50 and ends[1].sources["trades"][1] > 40


def test_what_is_dated_in_the_future_is_in_no_portion() -> None:
    times = list(range(0, 1000, 10))
    assert portions([times, times], at(0, 0), 1000, now_ms=500)[-1] == at(0, 0)
    assert portions([times, times], at(0, 0), 120, now_ms=500)[-1] == at(50, 50)
    assert portion(at(50, 50), at(100, 100), look_in([times, times]), 500, 30) is None


PARTS = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 50), st.integers(0, 200)), min_size=1)


@given(st.dictionaries(st.sampled_from(["trades", "orders"]), PARTS, min_size=1), st.integers(1, 300))
def test_shares_lead_to_the_end_and_are_about_as_large_as_the_limit(
    parts: dict[str, dict[int, tuple[int, int]]], limit: int
) -> None:
    here = SourcePosition(sources={n: {p: first for p, (first, _) in of.items()} for n, of in parts.items()})
    end = SourcePosition(sources={n: {p: first + more for p, (first, more) in of.items()} for n, of in parts.items()})
    limits = dict.fromkeys(parts, limit)
    while (after := share(here, end, limits)) is not None:
        assert end.dominates(after) and after.dominates(here) and after != here
        for name, partitions in end.sources.items():
            taken = {p: after.sources[name][p] - here.sources[name][p] for p in partitions}
            left = {p: partitions[p] - here.sources[name][p] for p in partitions}
            # one record more for each partition whose share is less than one
            assert sum(taken.values()) <= limit + len(partitions)
            assert sum(taken.values()) >= min(sum(left.values()), limit) - len(partitions)
            # no partition waits for another
            assert all(taken[p] or not left[p] for p in partitions)
        here = after
    assert all(SourcePosition(sources={n: of}).records_since(here) <= limit for n, of in end.sources.items())


def test_a_partition_that_is_new_is_read_from_its_beginning() -> None:
    assert share(at(4), at(4, 100), {"trades": 10}) == at(4, 10)
    assert share(at(4), at(4, 10), {"trades": 10}) is None
    # one that was recreated is not read backwards
    assert share(at(9, 0), at(4, 100), {"trades": 10}) == at(9, 10)


@contextmanager
def skewed(broker: Settings, spark: SparkSession, folder: Path) -> Iterator[World]:
    """A staged windowed count. Its first partition has 150 s of input, the second only the last 10 s."""
    settings = of_100(broker)
    with world_of(settings, spark, "windowed", folder) as world:
        produce(world, range(300))
        yield world


def produce(world: World, numbers: range) -> None:
    client = producer(world.settings)
    # otherwise the producer waits half a second for its first record
    await_connection(client, world.topic)
    last = numbers[-20:]
    for partition, number in [*((0, n) for n in numbers), *((1, n) for n in last)]:
        value = json.dumps({"n": number})
        # 90 records have the same time: a batch with them and those before is too large, one without them is small
        at_ms = START_MS + (120 if 120 <= number < 210 else number) * 500
        client.produce(world.topic, value, f"k{number % 7}", timestamp=at_ms, partition=partition)
    assert client.flush(30) == 0


def nothing_is_late(world: World) -> None:
    world.settle()
    assert world.result() == world.expected({})
    batches = progress_history(world.settings, world.name)
    assert batches[-1].total.late_dropped == 0
    assert max(p.batch.rows_in for p in batches) <= 100


def stopped_half_way(world: World) -> None:
    """Starts the release, and stops it after its second batch."""
    process_batch = Sink.process_batch

    def process(sink: Sink, rows: DataFrame, batch_id: int) -> None:
        process_batch(sink, rows, batch_id)
        if batch_id == 1:
            # Spark gets no third batch before the driver has been told to stop
            until("the driver does not stop", lambda: not sink.turnstile.all_may_run, 60)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sink, "process_batch", process)
        world.start()
        world.until("it has not begun", lambda: len(progress_history(world.settings, world.name)) > 1)
        world.stop()


def of_100(broker: Settings) -> Settings:
    """Settings for batches of at most 100 records."""
    return broker.model_copy(update={"trigger_s": 0.1, "heartbeat_s": 0.2, "max_records_per_batch": 100})


def paced(broker: Settings, monkeypatch: pytest.MonkeyPatch, *, first: int, quick_s: float) -> Settings:
    """The same. First batches have at most `first` records, and each that takes less than `quick_s` counts as quick."""
    monkeypatch.setattr(boot, "FIRST_RECORDS", first)
    monkeypatch.setattr(query, "QUICK_S", quick_s)
    return of_100(broker)


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize("kind", ["count", "windowed"])
def test_batches_grow_while_they_are_quick(
    kind: str, broker: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # quick, however busy the machine is
    settings = paced(broker, monkeypatch, first=20, quick_s=600.0)
    with world_of(settings, spark, kind, tmp_path) as world:
        world.produce(200)
        world.start()
        world.settle()
        read = [p.batch.rows_in for p in progress_history(world.settings, world.name) if p.batch.rows_in]
        assert sum(read) == len(world.records()) == 400
        # Spark's own limit is the last one from the beginning
        for most, rows in zip([20, 40, 80], read, strict=False):
            assert most // 2 <= rows <= most
        assert 50 < max(read) <= 100
        assert world.result() == world.expected({})
        # a query that starts again begins with small ones
        world.stop()
        world.produce(100)
        world.start()
        world.settle()
        again = [p.batch.rows_in for p in progress_history(world.settings, world.name) if p.batch.rows_in][len(read) :]
        assert sum(again) == 100 and again[0] <= 20
        assert world.result() == world.expected({})


@pytest.mark.spark
@pytest.mark.broker
def test_batches_that_take_long_stay_small(
    broker: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = paced(broker, monkeypatch, first=50, quick_s=0.0)
    with world_of(settings, spark, "count", tmp_path) as world:
        world.start()
        world.settle()
        read = [p.batch.rows_in for p in progress_history(world.settings, world.name)]
        assert sum(read) == 200 and max(read) <= 50


@pytest.mark.spark
@pytest.mark.broker
def test_batches_that_become_slow_are_small_again(
    broker: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = paced(broker, monkeypatch, first=20, quick_s=600.0)

    def then_slow(self: query.Query, records: int) -> None:
        if (last := self.sink.last) is not None and last.boundary.batch_id == 2:
            monkeypatch.setattr(query, "QUICK_S", 0.0)
            monkeypatch.setattr(query, "SLOW_S", 0.0)
        adapt_limits(self, records)

    adapt_limits = query.Query._adapt_limits
    monkeypatch.setattr(query.Query, "_adapt_limits", then_slow)
    with world_of(settings, spark, "count", tmp_path) as world:
        world.start()
        world.settle()
        read = [p.batch.rows_in for p in progress_history(world.settings, world.name) if p.batch.rows_in]
        assert sum(read) == 200 and max(read[:3]) > 40 and max(read[3:]) <= 20


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize("kind", ["count", "windowed"])
def test_a_commit_without_an_answer_does_not_change_the_plan_of_its_batch(
    kind: str, broker: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = paced(broker, monkeypatch, first=20, quick_s=600.0)
    commit, connect = BatchWriter.commit_progress, BatchWriter.connect
    left = ["answer", "connection"]

    def unanswered(self: BatchWriter, progress: Progress, offsets: dict[str, dict[int, int]] | None) -> None:
        commit(self, progress, offsets)
        # a batch that was larger than the first ones
        if progress.boundary.batch_id == 2 and left == ["answer", "connection"]:
            left.remove("answer")
            self.drop()
            raise OutcomeUnknown("the broker has ended")

    def unconnected(self: BatchWriter) -> Progress | None:
        if left == ["connection"]:
            left.remove("connection")
            raise Unavailable("the broker has not started yet", fix="wait")
        return connect(self)

    monkeypatch.setattr(BatchWriter, "commit_progress", unanswered)
    monkeypatch.setattr(BatchWriter, "connect", unconnected)
    with world_of(settings, spark, kind, tmp_path) as world:
        world.produce(200)
        world.start()
        world.settle()
        assert not left
        assert world.result() == world.expected({})
        assert progress_history(world.settings, world.name)[-1].total.rows_in == len(world.records())


def test_limits_double_up_to_the_most() -> None:
    first, most = Limits(total=4, by_source={"a": 3, "b": 1}), Limits(total=10, by_source={"a": 10, "b": 1})
    assert first.grown(most) == Limits(total=8, by_source={"a": 6, "b": 1})
    assert first.grown(most).grown(most) == first.grown(most).grown(most).grown(most) == most


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.broker
def test_neither_a_partition_of_recent_data_nor_a_stop_makes_rows_late(
    broker: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    with skewed(broker, spark, tmp_path) as world:
        stopped_half_way(world)
        read = progress_history(world.settings, world.name)[-1].total.rows_in
        assert read < len(world.records())
        world.start()
        wait_ready(world.context, world.name, for_s=0.1, timeout_s=120)
        # a ready release has read everything
        newest = progress_history(world.settings, world.name)[-1]
        assert newest.total.rows_in == len(world.records())
        nothing_is_late(world)
        # it also runs on without help
        produce(world, range(300, 320))
        nothing_is_late(world)
        assert progress_history(world.settings, world.name)[-1].total.rows_in == len(world.records())
        # it was stopped for long
        world.stop()
        produce(world, range(320, 460))
        world.start()
        nothing_is_late(world)


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.long
def test_nor_does_a_reset_to_the_beginning(broker: Settings, spark: SparkSession, tmp_path: Path) -> None:
    with skewed(broker, spark, tmp_path) as world:
        world.make_live()
        world.reset(Target(kind="earliest", text="--to-earliest"), stop=True)
        nothing_is_late(world)
