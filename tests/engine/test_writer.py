"""The writer on a real broker: one transaction per batch, and the newer driver always wins."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from pipelines.engine import writer as engine_writer
from pipelines.engine.writer import OutcomeUnknown, Superseded, Writer
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.client import MAX_RECORD_BYTES, consumer, producer
from pipelines.kafka.log import read_tail
from pipelines.kafka.offsets import end_of, end_offsets, first_offsets, group_offsets
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.topics import INPUT, PROGRESS, RESULT_STREAM, delete_topics, ensure_topic
from pipelines.model.names import dead_letter_topic, progress_topic, result_topic
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Progress
from pipelines.settings import Settings
from tests.shared.transactions import transactional

pytestmark = pytest.mark.broker
PARTITIONS = 2


class World:
    """A release's topics, and writers of it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.release = f"sums-{uuid.uuid4().hex[:8]}.v1"
        self.result, self.input = result_topic(self.release, 1), f"{self.release}-input"
        self.writers: list[Writer] = []
        ensure_topic(settings, self.result, PARTITIONS, RESULT_STREAM)
        ensure_topic(settings, self.input, 1, INPUT)
        ensure_topic(settings, progress_topic(self.release), 1, PROGRESS)
        ensure_topic(settings, dead_letter_topic(self.release), 1, RESULT_STREAM)

    def writer(self) -> Writer:
        made = Writer(self.settings, self.release, {self.result: PARTITIONS})
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

    def write(self, writer: Writer, batch: int, *values: str) -> dict[int, int]:
        """Writes a batch up to its commit. Returns the result's end."""
        writer.begin()
        assert writer.send(self.result, [(f"key-{v}", v, [("source", f"in:0:{v}")]) for v in values]) == []
        return writer.acknowledged().of(self.result)

    def commit(self, writer: Writer, batch: int) -> None:
        """Commits, and waits until consumers see it: the broker writes the markers after its answer."""
        writer.commit(self.progress(batch), {self.input: {0: batch + 1}})
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
def world(broker: Settings) -> Iterator[World]:
    made = World(broker)
    yield made
    made.close()


def test_a_batch_commits_its_records_its_progress_and_the_groups_offsets_together(world: World) -> None:
    writer = world.writer()
    assert writer.connect() is None
    written = world.write(writer, 0, "1", "2", "3")
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
    world.write(old, 0, "old")
    assert new.connect() is None
    with pytest.raises(Superseded):
        world.commit(old, 0)
    assert not old.connected
    world.write(new, 0, "new")
    world.commit(new, 0)
    assert [value for _, value, _ in world.read()] == [b"new"]
    assert world.writer().connect() == world.progress(0)


def test_a_batch_that_commits_at_the_last_moment_is_not_missed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = world.writer(), world.writer()
    old.connect()
    world.write(old, 0, "old")

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
        world.write(old, 0, "old")
        world.commit(old, 0)
    with pytest.raises(OutcomeUnknown):
        old.begin()
    assert world.read() == []


def test_aborted_records_do_not_count_as_progress(world: World) -> None:
    writer = world.writer()
    writer.connect()
    world.write(writer, 0, "kept")
    world.commit(writer, 0)
    # everything but the commit itself
    world.write(writer, 1, "lost")
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
    world.write(writer, 0, "first try")
    writer.abort()
    assert writer.connected
    written = world.write(writer, 0, "second try")
    world.commit(writer, 0)
    assert [value for _, value, _ in world.read()] == [b"second try"]
    assert sum(written.values()) >= 2


def test_what_is_too_large_is_returned_and_the_rest_is_written(world: World) -> None:
    writer = world.writer()
    writer.connect()
    writer.begin()
    # the producer measures before it compresses
    large = "x" * 2_000_000
    refused = writer.send(world.result, [("a", "1", None), ("b", large, [("source", "in:0:1")]), ("c", None, None)])
    assert [record for record, _ in refused] == [("b", large, [("source", "in:0:1")])]
    assert "too large" in refused[0][1].lower()
    writer.send_dead(dead_letter_topic(world.release), b"b", b"\xff", [("reason", b"too large")])
    writer.acknowledged()
    world.commit(writer, 0)
    assert sorted((key, value) for key, value, _ in world.read() if value) == [(b"a", b"1")]
    assert (b"c", None, {}) in world.read()
    assert world.read(dead_letter_topic(world.release)) == [(b"b", b"\xff", {"reason": b"too large"})]


def test_the_largest_record_that_is_queued_is_taken_by_the_broker(world: World) -> None:
    writer = world.writer()
    writer.connect()
    writer.begin()
    headers = [("topic", b"trades"), ("reason", b"the value is not JSON")]
    # over librdkafka's default limit, under that of a Java producer and a broker, and not compressible
    value = Random(1).randbytes(MAX_RECORD_BYTES)
    sizes = MAX_RECORD_BYTES - 200, *range(MAX_RECORD_BYTES - 120, MAX_RECORD_BYTES + 1)
    for size in sizes:
        writer.send_dead(dead_letter_topic(world.release), b"IBM", value[:size], headers)
    writer.acknowledged()
    world.commit(writer, 0)
    found = [len(value) for _, value, _ in world.read(dead_letter_topic(world.release)) if value is not None]
    assert max(found) > 1_048_400
    assert tuple(found) == sizes[: len(found)]


def test_a_dead_letter_that_is_too_large_has_its_size_instead_of_its_value(world: World) -> None:
    writer = world.writer()
    writer.connect()
    writer.begin()
    reason = ("reason", b"the value is not JSON")
    large, topic = b"x" * 1_048_576, dead_letter_topic(world.release)
    writer.send_dead(topic, b"IBM", large, [reason])
    writer.send_dead(topic, large, b"1", [reason])
    writer.send_dead(topic, large, None, [reason])
    writer.send_dead(topic, b"IBM", b"1", [reason])
    writer.acknowledged()
    world.commit(writer, 0)
    size, said = b"1048576", {"reason": b"the value is not JSON"}
    assert world.read(topic) == [
        (b"IBM", None, {**said, "value-bytes": size}),
        (None, None, {**said, "value-bytes": b"1", "key-bytes": size}),
        (None, None, {**said, "key-bytes": size}),
        (b"IBM", b"1", said),
    ]


def test_letters_wait_where_the_queue_is_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(settings: Settings, **conf: Any) -> Producer:
        return producer(settings, queue_buffering_max_messages=5, **conf)

    monkeypatch.setattr(engine_writer, "producer", small)
    writer = world.writer()
    writer.connect()
    writer.begin()
    for number in range(20):
        writer.send_dead(dead_letter_topic(world.release), None, str(number).encode(), [])
    writer.acknowledged()
    world.commit(writer, 0)
    assert [value for _, value, _ in world.read(dead_letter_topic(world.release))] == [b"%d" % n for n in range(20)]


def test_a_marker_without_a_batch_leaves_the_groups_offsets(world: World) -> None:
    writer = world.writer()
    writer.connect()
    world.write(writer, 3, "1")
    world.commit(writer, 3)
    writer.begin()
    writer.commit(world.progress(4), None)
    assert group_offsets(world.settings, world.release)[world.input][0] == (4, "7:3")
    assert world.writer().connect() == world.progress(4)


def test_order_is_kept_for_a_key(world: World) -> None:
    writer = world.writer()
    writer.connect()
    for batch in range(3):
        writer.begin()
        writer.send(world.result, (("key", f"{batch}-{n:04}", None) for n in range(200)))
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


def test_a_producer_that_had_no_broker_for_a_moment_is_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Callable[[KafkaError], None]] = []
    real = engine_writer.producer

    def made(settings: Settings, *, on_error: Callable[[KafkaError], None], **conf: Any) -> Producer:
        told.append(on_error)
        return real(settings, on_error=on_error, **conf)

    monkeypatch.setattr(engine_writer, "producer", made)
    writer = world.writer()
    writer.connect()
    # one of several connections: librdkafka opens it again
    told[0](KafkaError(KafkaError._TRANSPORT))
    assert writer.connected
    told[0](KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert not writer.connected
    writer.connect()
    # errors of the previous producer don't count for this one
    told[0](KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert writer.connected
    world.write(writer, 0, "1")
    world.commit(writer, 0)
    assert len(world.read()) == 1


# -- offsets


def test_ends_are_told_with_and_without_what_is_not_committed(world: World) -> None:
    writer = world.writer()
    writer.connect()
    world.write(writer, 0, *map(str, range(50)))
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
    world.write(slow, 0, "1", "2")
    deadline = time.monotonic() + 120
    # the broker looks every 10 s
    while end_of(world.settings, world.result, PARTITIONS) != end_of(
        world.settings, world.result, PARTITIONS, committed=False
    ):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    # runs on as if nothing had happened
    with pytest.raises((Superseded, KafkaException, OutcomeUnknown)):
        slow.send(world.result, [("key-3", "3", None)])
        slow.acknowledged()
        world.commit(slow, 0)
    slow.abort()
    assert world.read() == [] and read_tail(world.settings, progress_topic(world.release)) == []
    assert slow.connect() is None
    world.write(slow, 0, "1", "2", "3")
    world.commit(slow, 0)
    assert sorted(str(value) for _, value, _ in world.read()) == ["b'1'", "b'2'", "b'3'"]
