"""Sends the records of sources to Kafka: history at full speed, then live records at a rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from orchestration.sources.base import Record, Source
from pipelines.errors import BadUsage, SwitchyardError
from pipelines.kafka.client import admin, await_connection, producer, require_broker
from pipelines.kafka.failures import failure
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.model.text import utc
from pipelines.settings import Settings

# live records are sent in slices of this length: short enough for a smooth low rate, long enough for a cheap high one
SLICE_S = 0.05
FLUSH_TIMEOUT_S = 60.0
# what is said of a record with a time that the topic does not accept, and of others in its batch
_INVALID = (KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """What was sent. `topic`: or several, separated by commas. `first_ms`, `last_ms`: the earliest and latest event time;
    None if nothing was sent.
    """

    topic: str
    records: int
    duration_s: float
    first_ms: int | None
    last_ms: int | None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "duration_s": round(self.duration_s, 3)}


def last_timestamp_ms(settings: Settings, topic: str, partitions: int) -> int | None:
    """The latest record timestamp in `topic`; None if it is empty. Raises Unavailable if the broker does not answer."""
    client = admin(settings)  # kept in a variable: a client that is dropped never answers
    newest = OffsetSpec.max_timestamp()
    specs = {TopicPartition(topic, p): newest for p in range(partitions)}
    deadline = time.monotonic() + settings.request_timeout_s
    while True:
        answers = client.list_offsets(specs, request_timeout=settings.request_timeout_s).values()
        try:
            found = [answer.result(timeout=2 * settings.request_timeout_s) for answer in answers]
            return max((each.timestamp for each in found if each.offset >= 0 and each.timestamp >= 0), default=None)
        except KafkaException as error:
            # a topic that was just created has no leader yet
            if time.monotonic() > deadline:
                raise failure(settings, error.args[0], topic=topic) from error
            time.sleep(0.1)


def produce(
    settings: Settings,
    source: Source | Sequence[Source],
    *,
    topic: str | None = None,
    history: int = 0,
    rate: float | None = None,
    records: int | None = None,
    duration_s: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
    report: Callable[[Produced], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Produced:
    """Creates the topics if necessary, and sends `history` records at full speed; then, with a `rate`, live records.

    Live records end after `records` of them, after `duration_s` seconds, or when `stopped()`; without these, never.
    Event time continues from the latest one in the topics. `topic`: where the records of a single source go. Calls `report`
    about once a second. Raises BadUsage for one topic of several sources, Unavailable without a broker, Refused if a topic
    has another number of partitions, SwitchyardError for a lost record.
    """
    sources = list(source) if isinstance(source, Sequence) else [source]
    if topic is not None and len(sources) > 1:
        raise BadUsage(f"{topic} can't be the topic of {', '.join(s.topic for s in sources)}", fix="leave out --topic")
    require_broker(settings)
    topics = {topic or each.topic: each for each in sources}
    for name, each in topics.items():
        ensure_topic(settings, name, each.partitions, INPUT)
    last = [last_timestamp_ms(settings, name, each.partitions) for name, each in topics.items()]
    after_ms = max((each for each in last if each is not None), default=None)
    blocks = {name: each.blocks(after_ms) for name, each in topics.items()}
    sender = _Sender(settings, ", ".join(topics), side_by_side(blocks), clock, stopped, report)
    try:
        sender.send(history)
        if rate is not None:
            _live(sender, rate, records, duration_s, stopped, clock, sleep)
    finally:
        sender.close()
    return sender.produced()


def side_by_side(blocks: Mapping[str, Iterator[list[Record]]]) -> Iterator[tuple[str, Record]]:
    """Topic and record, block by block; the records of the topics' blocks, which are of the same second, take turns."""
    for together in zip(*blocks.values(), strict=True):
        placed = [
            (number / len(block), order, name, record)
            for order, (name, block) in enumerate(zip(blocks, together, strict=True))
            for number, record in enumerate(block)
        ]
        if len(together) > 1:
            placed.sort(key=lambda each: each[:2])
        yield from ((name, record) for _, _, name, record in placed)


def _live(
    sender: _Sender,
    rate: float,
    records: int | None,
    duration_s: float | None,
    stopped: Callable[[], bool],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Sends record n at `start + n / rate`; after a stall it catches up."""
    start, sent = clock(), 0
    while not stopped():
        elapsed_s = clock() - start
        if duration_s is not None:
            elapsed_s = min(elapsed_s, duration_s)
        due = int(elapsed_s * rate)
        if records is not None:
            due = min(due, records)
        sender.send(due - sent)
        sent = due
        if sent == records or elapsed_s == duration_s:
            return
        sleep(SLICE_S)


class _Sender:
    """Sends records one after another and counts them."""

    def __init__(
        self,
        settings: Settings,
        topic: str,
        records: Iterator[tuple[str, Record]],
        clock: Callable[[], float],
        stopped: Callable[[], bool],
        report: Callable[[Produced], None] | None,
    ) -> None:
        self._topic = topic
        self._records = records
        self._clock = clock
        self._stopped = stopped
        self._report = report
        # callbacks for failures only: a callback per record would take longer than sending it
        self._producer: Producer = producer(settings, delivery_report_only_error=True, linger_ms=10)
        await_connection(self._producer, topic.partition(",")[0])
        self._lost: KafkaError | None = None
        self._count = 0
        self._first_ms: int | None = None
        self._last_ms: int | None = None
        self._start = self._reported = clock()

    def send(self, number: int) -> None:
        """Sends the next `number` records."""
        left = number
        while left > 0 and not self._stopped():
            left -= self._slice(min(left, 2_000))
            self._producer.poll(0)
            self._raise_lost()
            if self._report and self._clock() - self._reported >= 1:
                self._reported = self._clock()
                self._report(self.produced())
        self._producer.poll(0)
        self._raise_lost()

    def close(self) -> None:
        """Waits for the acknowledgments. Raises SwitchyardError if some do not come."""
        left = self._producer.flush(FLUSH_TIMEOUT_S)
        self._raise_lost()
        if left:
            raise SwitchyardError(
                f"{left:,} records for {self._topic} were not acknowledged within {FLUSH_TIMEOUT_S:.0f} s",
                fix="see `switchyard status`; these records may or may not be in the topic",
            )

    def produced(self) -> Produced:
        return Produced(
            topic=self._topic,
            records=self._count,
            duration_s=self._clock() - self._start,
            first_ms=self._first_ms,
            last_ms=self._last_ms,
        )

    def _slice(self, number: int) -> int:
        send, lost = self._producer.produce, self._on_lost
        first_ms, last_ms = self._first_ms, self._last_ms
        try:
            for _ in range(number):
                topic, (key, value, time_ms) = next(self._records)
                if first_ms is None or time_ms < first_ms:
                    first_ms = time_ms
                if last_ms is None or time_ms > last_ms:
                    last_ms = time_ms
                while True:
                    try:
                        send(topic, value, key, on_delivery=lost, timestamp=time_ms)
                        break
                    except BufferError:
                        self._producer.poll(0.05)
                        self._raise_lost()
        finally:
            self._first_ms, self._last_ms = first_ms, last_ms
        self._count += number
        return number

    def _on_lost(self, error: KafkaError | None, message: Message) -> None:
        self._lost = self._lost or error

    def _raise_lost(self) -> None:
        if self._lost is None:
            return
        if self._lost.code() in _INVALID and self._last_ms is not None and self._last_ms > time.time() * 1000:
            raise SwitchyardError(
                f"the records for {self._topic} have come to {utc(self._last_ms)} UTC, which is in the future. Topics of "
                "inputs do not accept such records",
                fix="ask for fewer records, or for more in each day or second, by --per-day or --per-second",
            ) from KafkaException(self._lost)
        raise SwitchyardError(
            f"the broker did not accept a record for {self._topic}: {self._lost.str()}",
            fix="see `switchyard status`; produce again when the cluster is healthy",
        ) from KafkaException(self._lost)
