"""The writer of a driver on a real broker: one transaction per batch, and the newer driver always wins."""

from __future__ import annotations

import os
import signal
import time
import uuid
from base64 import b64encode
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from pyspark.errors import NumberFormatException
from pyspark.sql import SparkSession

from orchestration.local.process import ProcessRef
from pipelines.engine import writer as engine_writer
from pipelines.engine.batch_writer import BatchWriter
from pipelines.engine.jvm_producer import BatchRecords, JvmProducer
from pipelines.engine.outages import is_outage
from pipelines.engine.records import Unsent, as_sent, refusal
from pipelines.engine.writer import OutcomeUnknown, Superseded
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.client import MAX_RECORD_BYTES, admin, consumer
from pipelines.kafka.log import read_tail
from pipelines.kafka.offsets import end_of, end_offsets, first_offsets, group_offsets
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.topics import INPUT, PROGRESS, RESULT_STREAM, delete_topics, ensure_topic
from pipelines.model.names import dead_letter_topic, progress_topic, result_topic
from pipelines.model.positions import ResultPosition, SourcePosition, Span
from pipelines.model.progress import Boundary, Progress
from pipelines.model.reset import Replays
from pipelines.settings import Settings
from tests.shared.transactions import transactional

pytestmark = [pytest.mark.broker, pytest.mark.spark]
PARTITIONS = 2
NO_REPLAYS = Replays([], {})
# key, value, source
Row = tuple[str | None, str | None, str | None]


class World:
    """A release's topics, and writers of it."""

    def __init__(self, settings: Settings, spark: SparkSession) -> None:
        self.settings, self.spark = settings, spark
        self.release = f"sums-{uuid.uuid4().hex[:8]}.v1"
        self.result, self.input = result_topic(self.release, 1), f"{self.release}-input"
        self.writers: list[BatchWriter] = []
        ensure_topic(settings, self.result, PARTITIONS, RESULT_STREAM)
        ensure_topic(settings, self.input, 1, INPUT)
        ensure_topic(settings, progress_topic(self.release), 1, PROGRESS)
        ensure_topic(settings, dead_letter_topic(self.release), 1, RESULT_STREAM)

    def writer(self) -> BatchWriter:
        made = BatchWriter(self.settings, self.release, {self.result: PARTITIONS}, JvmProducer)
        self.writers.append(made)
        return made

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        delete_topics(
            self.settings, [self.result, self.input, progress_topic(self.release), dead_letter_topic(self.release)]
        )

    def progress(self, batch: int) -> Progress:
        boundary = Boundary(batch_id=batch, position=SourcePosition(sources={"in": {0: batch}}))
        return Progress(
            release=self.release, generation=7, token=1, boundary=boundary, result=ResultPosition(topics={}), at_ms=0
        )

    def send(
        self, writer: BatchWriter, rows: Sequence[Row], *, replays: Replays = NO_REPLAYS, replayed: Any = "none", parts: int = 1
    ) -> list[Unsent]:  # fmt: skip
        """Executes a batch of these rows, in so many partitions, and queues them."""
        frame = self.spark.createDataFrame(list(rows), "key string, value string, source string")
        records = BatchRecords(frame.coalesce(1) if parts == 1 else frame.repartition(parts))
        assert records.rows == len(rows)
        try:
            return writer.write(records, {"": self.result}, replays, replayed, in_turn=False)
        finally:
            records.close()

    def write(self, writer: BatchWriter, *values: str) -> dict[int, int]:
        """Writes a batch up to its commit. Returns the result's end."""
        writer.begin()
        assert self.send(writer, [(f"key-{v}", v, f"in:0:{v}") for v in values]) == []
        return writer.acknowledged().of(self.result)

    def commit(self, writer: BatchWriter, batch: int) -> None:
        """Commits, and waits until consumers see it: the broker writes the markers after its answer."""
        writer.commit_progress(self.progress(batch), {self.input: {0: batch + 1}})
        topics = [self.result, dead_letter_topic(self.release)]
        deadline = time.monotonic() + 10
        while end_offsets(self.settings, topics) != end_offsets(self.settings, topics, committed=False):
            assert time.monotonic() < deadline, "a transaction is still open"
            time.sleep(0.01)

    def read(self, topic: str | None = None) -> list[tuple[bytes | None, bytes | None, dict[str, bytes]]]:
        """All committed records: key, value, headers."""
        topic = topic or self.result
        client: Consumer = consumer(self.settings, auto_offset_reset="earliest", enable_partition_eof=True)
        ends = end_offsets(self.settings, [topic])[topic]
        found, done = [], 0
        try:
            for p in ends:
                # connects it to the leader at once: an assignment alone may wait for librdkafka's next round, a second
                client.get_watermark_offsets(TopicPartition(topic, p), timeout=10)
            client.assign([TopicPartition(topic, p, 0) for p in ends])
            while done < len(ends):
                message = client.poll(10)
                assert message is not None
                if message.error() is not None:
                    done += 1
                    continue
                headers: dict[str, bytes] = dict(message.headers() or [])  # type: ignore[arg-type]
                found.append((message.key(), message.value(), headers))
        finally:
            client.close()
        return found


@pytest.fixture
def world(broker: Settings, spark: SparkSession) -> Iterator[World]:
    made = World(broker, spark)
    yield made
    made.close()


def test_a_batch_commits_its_records_its_progress_and_the_groups_offsets_together(world: World) -> None:
    writer = world.writer()
    assert writer.connect() is None
    written = world.write(writer, "1", "2", "3")
    assert sum(written.values()) == 3
    assert world.read() == []
    world.commit(writer, 0)
    found = world.read()
    assert sorted(value for _, value, _ in found if value) == [b"1", b"2", b"3"]
    assert {headers["source"] for _, _, headers in found} == {b"in:0:1", b"in:0:2", b"in:0:3"}
    assert group_offsets(world.settings, world.release) == {world.input: {0: (1, "7:0")}}
    # after the commit's marker, which no consumer gets
    assert sum(end_of(world.settings, world.result, PARTITIONS).values()) > sum(written.values())
    assert world.writer().connect() == world.progress(0)


def test_a_newer_writer_fences_the_older_one_whose_commit_is_refused(world: World) -> None:
    old, new = world.writer(), world.writer()
    old.connect()
    world.write(old, "old")
    assert new.connect() is None
    with pytest.raises(Superseded):
        world.commit(old, 0)
    assert not old.connected
    world.write(new, "new")
    world.commit(new, 0)
    assert [value for _, value, _ in world.read()] == [b"new"]
    assert world.writer().connect() == world.progress(0)


def test_a_batch_that_commits_at_the_last_moment_is_not_missed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = world.writer(), world.writer()
    old.connect()
    world.write(old, "old")

    def in_flight(*where: Any) -> Progress | None:
        found = newest_progress(*where)
        # the newer one would not see a commit made after this
        with suppress(Superseded):
            world.commit(old, 0)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(engine_writer, "newest_progress", in_flight)
        known = new.connect()
    assert known == world.writer().connect()


def test_a_fenced_writer_can_not_begin_again(world: World) -> None:
    old, new = world.writer(), world.writer()
    old.connect()
    new.connect()
    with pytest.raises(Superseded):
        world.write(old, "old")
        world.commit(old, 0)
    with pytest.raises(OutcomeUnknown):
        old.begin()
    assert world.read() == []


def test_aborted_records_do_not_count_as_progress(world: World) -> None:
    writer = world.writer()
    writer.connect()
    world.write(writer, "kept")
    world.commit(writer, 0)
    # everything but the commit itself
    world.write(writer, "lost")
    client = transactional(world.settings, f"{world.release}-other", progress_topic(world.release))
    client.begin_transaction()
    client.produce(progress_topic(world.release), world.progress(1).model_dump_json(), "1", partition=0)
    client.flush(10)
    client.abort_transaction(10)
    assert world.writer().connect() == world.progress(0)
    assert [value for _, value, _ in world.read()] == [b"kept"]


def test_after_an_abort_the_same_batch_can_be_written(world: World) -> None:
    writer = world.writer()
    writer.connect()
    world.write(writer, "first try")
    writer.abort()
    # a task of the first try could still send by the producer
    assert not writer.connected
    assert writer.connect() is None
    written = world.write(writer, "second try")
    world.commit(writer, 0)
    assert [value for _, value, _ in world.read()] == [b"second try"]
    assert sum(written.values()) >= 2


def test_what_is_too_large_is_returned_and_the_rest_is_written(world: World) -> None:
    writer = world.writer()
    writer.connect()
    writer.begin()
    # it is measured before it is compressed
    large = "größe" * 300_000
    refused = world.send(writer, [("a", "1", None), ("b", large, "in:0:1"), (None, large, None), ("c", None, None)])
    assert refused == [
        Unsent(world.result, b"b", 2_100_000, "in:0:1", again=False),
        Unsent(world.result, None, 2_100_000, None, again=False),
    ]
    writer.send(dead_letter_topic(world.release), [(b"b", b"\xff", [("reason", b"too large")])])
    writer.acknowledged()
    world.commit(writer, 0)
    assert sorted((key, value) for key, value, _ in world.read() if value) == [(b"a", b"1")]
    assert (b"c", None, {}) in world.read()
    assert world.read(dead_letter_topic(world.release)) == [(b"b", b"\xff", {"reason": b"too large"})]


def test_a_record_names_its_source_and_says_if_it_is_a_replay(world: World) -> None:
    # offsets 3 to 9 had been processed
    start, end = (SourcePosition(sources={"trades": {0: offset}}) for offset in (3, 10))
    replays = Replays([Span(start=start, end=end)], {"trades": "trades"})
    names = {"a": None, "b": "trades:0:9", "c": "trades:0:10", "d": "trades:0:2", "e": "trades:1:5"}
    writer = world.writer()
    writer.connect()
    for batch, (replayed, again) in enumerate({"none": "", "some": "b", "all": "abcde"}.items()):
        writer.begin()
        rows = [(f"{key}-{replayed}", None if key == "b" else "1", source) for key, source in names.items()]
        assert world.send(writer, rows, replays=replays, replayed=replayed, parts=2) == []
        writer.acknowledged()
        world.commit(writer, batch)
        found = {key: (value, headers) for key, value, headers in world.read() if key and replayed.encode() in key}
        for key, source in names.items():
            said = {} if source is None else {"source": source.encode()}
            marked = {"replay": b"true"} if key in again else {}
            assert found[f"{key}-{replayed}".encode()] == (None if key == "b" else b"1", {**said, **marked})
        assert len(found) == len(names)


def test_two_sources_that_read_one_topic_must_both_have_read_a_record(world: World) -> None:
    ends = {"trades": {0: 10}, "prices": {0: 5}}
    span = Span(start=SourcePosition(sources={}), end=SourcePosition(sources=ends))
    replays = Replays([span], {"trades": "trades", "prices": "trades"})
    writer = world.writer()
    writer.connect()
    writer.begin()
    rows = [(str(offset), "1", f"trades:0:{offset}") for offset in (4, 5, 10)]
    world.send(writer, rows, replays=replays, replayed="some")
    writer.acknowledged()
    world.commit(writer, 0)
    found = {key: "replay" in headers for key, _, headers in world.read()}
    assert found == {str(at).encode(): replays.record(f"trades:0:{at}") for at in (4, 5, 10)}
    assert found == {b"4": True, b"5": False, b"10": False}


def test_each_of_several_results_gets_its_own_rows(world: World) -> None:
    frame = world.spark.createDataFrame(
        [("a", b"\xff", None, "alerts"), ("b", None, None, "counts")],
        "key string, value binary, source string, result string",
    )
    records = BatchRecords(frame)
    writer = world.writer()
    writer.connect()
    writer.begin()
    topics = {"counts": world.result, "alerts": dead_letter_topic(world.release)}
    assert writer.write(records, topics, NO_REPLAYS, "none", in_turn=True) == []
    records.close()
    writer.acknowledged()
    world.commit(writer, 0)
    assert world.read() == [(b"b", None, {})]
    assert world.read(dead_letter_topic(world.release)) == [(b"a", b"\xff", {})]


def test_a_batch_of_many_partitions_is_written_whole(world: World) -> None:
    # some chunks for each partition
    frame = world.spark.range(200_000, numPartitions=3).selectExpr(
        "cast(id as string) key", "repeat(cast(id as string), 3) value", "concat('in:0:', id) source"
    )
    records = BatchRecords(frame)
    assert records.rows == 200_000
    writer = world.writer()
    writer.connect()
    writer.begin()
    assert writer.write(records, {"": world.result}, NO_REPLAYS, "none", in_turn=False) == []
    assert sum(writer.acknowledged().of(world.result).values()) == 200_000
    world.commit(writer, 0)
    found = {key: (value, headers) for key, value, headers in world.read()}
    records.close()
    assert len(found) == 200_000
    assert all(
        found[str(n).encode()] == (str(n).encode() * 3, {"source": f"in:0:{n}".encode()}) for n in range(200_000)
    )


@pytest.mark.parametrize("key", [None, "", "größe", "k" * 500_000], ids=lambda key: str(key)[:5])
def test_the_largest_record_that_is_sent_is_taken_by_the_broker(world: World, key: str | None) -> None:
    def row(size: int) -> Row:
        # not compressible
        return key, text[:size], "in:0:1"

    text = b64encode(Random(1).randbytes(MAX_RECORD_BYTES)).decode()
    headers: list[tuple[str, str | bytes | None]] = [("source", b"in:0:1")]
    sizes = range(400_000, MAX_RECORD_BYTES)
    largest = sizes[bisect_left(sizes, True, key=lambda size: refusal(key, text[:size], headers) is not None) - 1]
    writer = world.writer()
    writer.connect()
    writer.begin()
    refused = world.send(writer, [row(largest + 1), row(largest)])
    assert [each.value_bytes for each in refused] == [largest + 1]
    writer.send(dead_letter_topic(world.release), [(key, Random(2).randbytes(largest), headers)])
    writer.acknowledged()
    world.commit(writer, 0)
    assert [len(value or b"") for _, value, _ in world.read()] == [largest]
    assert [len(value or b"") for _, value, _ in world.read(dead_letter_topic(world.release))] == [largest]


def test_a_dead_letter_that_is_too_large_has_its_size_instead_of_its_value(world: World) -> None:
    writer = world.writer()
    writer.connect()
    writer.begin()
    reason = ("reason", b"the value is not JSON")
    large, topic = b"x" * 1_048_576, dead_letter_topic(world.release)
    letters = [(b"IBM", large, [reason]), (large, b"1", [reason]), (large, None, [reason]), (b"IBM", b"1", [reason])]
    writer.send(topic, map(as_sent, letters))  # type: ignore[arg-type]
    writer.acknowledged()
    world.commit(writer, 0)
    size, said = b"1048576", {"reason": b"the value is not JSON"}
    assert world.read(topic) == [
        (b"IBM", None, {**said, "value-bytes": size}),
        (None, None, {**said, "value-bytes": b"1", "key-bytes": size}),
        (None, None, {**said, "key-bytes": size}),
        (b"IBM", b"1", said),
    ]


def test_a_record_that_is_too_large_is_not_sent(world: World) -> None:
    writer = world.writer()
    writer.connect()
    writer.begin()
    with pytest.raises(KafkaException, match="too large for a record, which may have 1,048,448 bytes at most"):
        writer.send(dead_letter_topic(world.release), [(None, b"x" * MAX_RECORD_BYTES, None)])
    writer.acknowledged()
    world.commit(writer, 0)
    assert world.read(dead_letter_topic(world.release)) == []


def test_a_marker_without_a_batch_leaves_the_groups_offsets(world: World) -> None:
    writer = world.writer()
    writer.connect()
    world.write(writer, "1")
    world.commit(writer, 3)
    writer.begin()
    writer.commit_progress(world.progress(4), None)
    assert group_offsets(world.settings, world.release)[world.input][0] == (4, "7:3")
    assert world.writer().connect() == world.progress(4)


def test_order_is_kept_for_a_key(world: World) -> None:
    writer = world.writer()
    writer.connect()
    for batch in range(3):
        writer.begin()
        world.send(writer, [("key", f"{batch}-{n:04}", None) for n in range(200)])
        writer.acknowledged()
        world.commit(writer, batch)
    values = [value for _, value, _ in world.read()]
    assert len(values) == 600 and values == sorted(values, key=lambda value: value or b"")


def test_a_writer_that_never_connected_says_so(world: World) -> None:
    with pytest.raises(OutcomeUnknown, match="is not connected"):
        world.writer().begin()
    world.writer().abort()


def test_a_writer_without_a_begun_transaction_does_not_write(world: World) -> None:
    writer = world.writer()
    writer.connect()
    with pytest.raises(KafkaException):
        world.commit(writer, 0)


# -- offsets


def test_ends_are_told_with_and_without_what_is_not_committed(world: World) -> None:
    writer = world.writer()
    writer.connect()
    world.write(writer, *map(str, range(50)))
    assert sum(end_of(world.settings, world.result, PARTITIONS).values()) == 0
    assert sum(end_of(world.settings, world.result, PARTITIONS, committed=False).values()) == 50
    assert end_offsets(world.settings, [world.result, world.input])[world.input] == {0: 0}
    assert first_offsets(world.settings, [world.result]) == {world.result: {0: 0, 1: 0}}


def test_a_topic_that_is_not_there_is_refused_by_name(broker: Settings) -> None:
    with pytest.raises(Refused, match="there is no topic nowhere"):
        end_offsets(broker, ["nowhere"])


def test_a_group_that_has_committed_nothing_has_no_offsets(broker: Settings) -> None:
    assert group_offsets(broker, "nobody") == {}


# -- how long a transaction may take


@contextmanager
def standing_still(settings: Settings) -> Iterator[None]:
    """While the block runs, the broker answers nothing."""
    process = ProcessRef.read(settings.state_dir / "broker" / "broker.pid")
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("where", ["acknowledged", "offsets", "commit"])
def test_a_broker_that_stands_still_is_waited_for_as_long_as_a_request_may_take(world: World, where: str) -> None:
    world.settings = world.settings.model_copy(update={"request_timeout_s": 2.0})
    writer = world.writer()
    writer.connect()
    # it then knows the topic
    world.write(writer, "0")
    world.commit(writer, 0)
    if where == "acknowledged":
        writer.begin()
        with standing_still(world.settings), pytest.raises(KafkaException, match=r"none of 1 records .* for 2 s"):
            world.send(writer, [("a", "1", None)])
            writer.acknowledged()
        with standing_still(world.settings):
            writer.abort()
    elif where == "offsets":
        world.write(writer, "1")
        with standing_still(world.settings):
            with pytest.raises(KafkaException):
                writer.commit_progress(world.progress(1), {world.input: {0: 2}})
            writer.abort()
    else:
        world.write(writer, "1")
        live = writer._live()
        live.produce(
            progress_topic(world.release), world.progress(1).model_dump_json(exclude_none=True), "1", partition=0
        )
        assert live.flush(10) == 0
        with standing_still(world.settings), pytest.raises(OutcomeUnknown, match="was not answered"):
            writer.commit()
    # what was under way is in the result and the progress, or in none of them
    world.settings = world.settings.model_copy(update={"request_timeout_s": 10.0})
    heir = world.writer()
    last = heir.connect()
    written = sorted(value or b"" for _, value, _ in world.read())
    assert (last, written) in ((world.progress(0), [b"0"]), (world.progress(1), [b"0", b"1"]))


def test_rows_for_which_the_queue_has_no_room_are_waited_for_as_long_as_a_request_may_take(world: World) -> None:
    world.settings = world.settings.model_copy(update={"request_timeout_s": 2.0})
    writer = world.writer()
    writer.connect()
    world.write(writer, "0")
    world.commit(writer, 0)
    # the queue holds 32 MiB
    records = BatchRecords(world.spark.range(60).selectExpr("'k' key", "repeat('x', 1000000) value", "null source"))
    writer.begin()
    with standing_still(world.settings), pytest.raises(KafkaException, match="max blocking time"):
        writer.write(records, {"": world.result}, NO_REPLAYS, "none", in_turn=False)
    writer.abort()
    # the batch's records are kept until they are closed
    assert writer.connect() == world.progress(0)
    writer.begin()
    assert writer.write(records, {"": world.result}, NO_REPLAYS, "none", in_turn=False) == []
    records.close()
    writer.acknowledged()
    world.commit(writer, 1)
    assert sorted(len(value or b"") for _, value, _ in world.read()) == [1, *[1_000_000] * 60]


def test_a_topic_that_is_not_there_is_waited_for_once_however_many_records_it_would_get(world: World) -> None:
    world.settings = world.settings.model_copy(update={"request_timeout_s": 1.0})
    writer = world.writer()
    writer.connect()
    writer.begin()
    writer.send("nowhere", [(None, b"x", None)] * 100)
    with ThreadPoolExecutor(1) as pool, pytest.raises(KafkaException, match="nowhere not present in metadata"):
        pool.submit(writer.acknowledged).result(30)
    with pytest.raises(KafkaException, match="nowhere not present"):
        writer.commit_progress(world.progress(0), None)
    assert world.writer().connect() is None


def test_a_record_that_the_broker_refuses_stops_the_batch(world: World) -> None:
    small = ConfigResource("topic", world.result)
    small.add_incremental_config(ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET))
    client = admin(world.settings)
    client.incremental_alter_configs([small])[small].result(10)
    writer = world.writer()
    writer.connect()
    writer.begin()
    with pytest.raises(KafkaException, match="RecordTooLarge"):
        # the broker's answer may come before all is sent
        world.send(writer, [("b", b64encode(Random(1).randbytes(3_000)).decode(), None)])
        writer.acknowledged()
    # whoever commits nevertheless is told that nothing is
    with pytest.raises(KafkaException) as refused:
        writer.commit_progress(world.progress(0), None)
    assert refused.value.args[0].txn_requires_abort()
    assert world.writer().connect() is None and world.read() == []


# 200 KB for each partition, which Spark's tasks send
@pytest.mark.parametrize("value", ["1", "1" * 200_000], ids=["few bytes", "many bytes"])
def test_an_error_of_the_rows_is_no_outage(world: World, value: str) -> None:
    start, end = (SourcePosition(sources={"trades": {0: offset}}) for offset in (3, 10))
    replays = Replays([Span(start=start, end=end)], {"trades": "trades"})
    writer = world.writer()
    writer.connect()
    writer.begin()
    with pytest.raises(NumberFormatException) as error:
        world.send(writer, [("a", value, "trades:0:none")], replays=replays, replayed="some")
    assert not is_outage(error.value)
    writer.abort()
    assert world.writer().connect() is None and world.read() == []


# of 34 KB and of 336 KB for each partition: the larger ones are sent by Spark's tasks
@pytest.mark.parametrize("rows", [3_000, 30_000])
def test_rows_of_a_table_are_sent_in_the_order_of_the_partitions(world: World, rows: int) -> None:
    frame = world.spark.range(rows, numPartitions=5).selectExpr("'k' key", "cast(id as string) value", "null source")
    records = BatchRecords(frame)
    writer = world.writer()
    writer.connect()
    writer.begin()
    assert writer.write(records, {"": world.result}, NO_REPLAYS, "none", in_turn=True) == []
    records.close()
    writer.acknowledged()
    world.commit(writer, 0)
    assert [value for _, value, _ in world.read()] == [str(n).encode() for n in range(rows)]


def test_a_writer_that_is_told_to_give_up_waits_for_nothing(world: World) -> None:
    writer = world.writer()
    writer.connect()
    world.write(writer, "0")
    world.commit(writer, 0)
    writer.begin()
    with standing_still(world.settings):
        world.send(writer, [("key-0", "1", None)])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(writer.acknowledged)
            writer.give_up()
            with pytest.raises(KafkaException):
                waiting.result(5)
        writer.abort()
    assert not writer.connected
    assert world.writer().connect() == world.progress(0)
    assert [value for _, value, _ in world.read()] == [b"0"]


def test_a_broker_that_takes_no_transaction_of_that_length_is_told_of(world: World) -> None:
    # the embedded broker's limit is 15 min
    world.settings = world.settings.model_copy(update={"transaction_timeout_s": 901.0})
    with pytest.raises(BadUsage, match=r"not allow transactions of 901 s") as caught:
        world.writer().connect()
    assert "transaction.max.timeout.ms" in caught.value.fix


@pytest.mark.long
def test_a_batch_that_the_broker_has_ended_is_in_no_result_until_it_is_written_again(world: World) -> None:
    world.settings = world.settings.model_copy(update={"transaction_timeout_s": 10.0})
    slow = world.writer()
    slow.connect()
    world.write(slow, "1", "2")
    deadline = time.monotonic() + 120
    # the broker looks every 10 s
    while end_of(world.settings, world.result, PARTITIONS) != end_of(
        world.settings, world.result, PARTITIONS, committed=False
    ):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    # runs on as if nothing had happened
    with pytest.raises((Superseded, KafkaException, OutcomeUnknown)):
        world.send(slow, [("key-3", "3", None)])
        slow.acknowledged()
        world.commit(slow, 0)
    slow.abort()
    assert world.read() == [] and read_tail(world.settings, progress_topic(world.release)) == []
    assert slow.connect() is None
    world.write(slow, "1", "2", "3")
    world.commit(slow, 0)
    assert sorted(str(value) for _, value, _ in world.read()) == ["b'1'", "b'2'", "b'3'"]
