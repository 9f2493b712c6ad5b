"""An append-only log of one partition: read whole and committed, written by one fenced writer per step."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from pipelines.errors import SwitchyardError
from pipelines.kafka.client import UNLED, await_connection, consumer, drain, once_led, own, producer
from pipelines.kafka.failures import TopicGone, failure, forbidden, unavailable, unreached
from pipelines.kafka.kept import Kept, reading
from pipelines.kafka.offsets import end_of
from pipelines.kafka.topics import partition_count
from pipelines.settings import Settings

# short enough to notice the end after an aborted transaction, which doesn't end a fetch (measured); long enough that an
# idle reader costs little
_FETCH_WAIT_MS = 200
# how much of a long log is fetched in advance: more would only take memory, as reading an entry is slower than fetching
_QUEUE_KB = 8_192
# records per call of the client
_AT_ONCE = 4_000
# by then a new client knows the leader, if there is one
LED_S = 1.0
NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
# a kept producer saves the steps of one operation 65-500 ms each; an idle one isn't worth a connection
_KEEP_S = 30.0


# offset and value
Record = tuple[int, bytes]


class Aside(bytes):
    """A value that only a reader of asides sees: stored as the key of a record without a value. Others ignore it."""


def value_of(message: Message) -> bytes | None:
    """What a record says to a reader of asides: its value, or its aside; None: nothing."""
    value = message.value()
    return message.key() if value is None else value


class LogReader:
    """Reads a topic's only partition from a given offset, committed records only, incrementally.

    `start`: the first offset; None: `back` offsets before the present end. `asides`: also reads asides (`Aside`). Reading
    to an end works only if all writers are transactional. A fetch waits long for new records, as the first one ends it.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        *,
        start: int | None = 0,
        back: int = 0,
        asides: bool = False,
        client: AdminClient | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._asides = asides
        self._clock = clock
        # why the cluster could not be reached since the last record
        self._trouble: KafkaError | None = None
        self._admin = client
        self._consumer: Consumer = consumer(
            settings, auto_offset_reset="earliest", fetch_wait_max_ms=_FETCH_WAIT_MS, enable_partition_eof=True,
            queued_max_messages_kbytes=_QUEUE_KB,
        )  # fmt: skip
        # connects to the leader at once; an assignment alone waits a second or more for librdkafka's next round
        try:
            self._first, end = _watermarks(settings, self._consumer, topic)
        except KafkaException as error:
            raise failure(settings, error.args[0], topic=topic) from error
        self._next = max(0, end - back) if start is None else start
        # not where nothing is kept any more: closing the consumer while librdkafka looks for another offset can wait for ever
        self._consumer.assign([TopicPartition(topic, 0, max(self._next, self._first))])

    @property
    def position(self) -> int:
        """The next offset that will be read."""
        return self._next

    @property
    def first(self) -> int:
        """The first offset that the topic kept when this reader was made."""
        return self._first

    def close(self) -> None:
        self._consumer.close()

    def seek(self, offset: int) -> None:
        """Continues at `offset`."""
        self._next = offset
        self._consumer.assign([TopicPartition(self._topic, 0, offset)])

    def poll(self, timeout_s: float) -> list[bytes]:
        """Values of records that arrived since the last call. Waits up to `timeout_s` for the first one."""
        return [value for _, value in self.records(timeout_s)]

    def records(self, timeout_s: float) -> list[Record]:
        """Offsets and values of at most some thousand records that arrived since the last call, as `poll` does."""
        found: list[Record] = []
        deadline = self._clock() + timeout_s
        while not found:
            messages = drain(self._consumer, max(0.0, deadline - self._clock()), at_most=_AT_ONCE)
            found = self._take(messages)
            if not messages or self._clock() >= deadline:
                break
        return found

    def end(self) -> int:
        """The log's current end, the last stable offset. Raises Unavailable without an answer."""
        # on a connection of its own: on the consumer's, the request would queue after a waiting fetch
        self._admin = own(self._settings, self._admin)
        return end_of(self._settings, self._topic, 1, client=self._admin)[0]

    def records_to(self, end: int) -> Iterator[list[Record]]:
        """Offsets and values of all records before offset `end`, some thousand at a time. Waits for them.

        Raises Unavailable if the broker sends nothing for the settings' request timeout, which restarts with each
        record: a long log may take longer.
        """
        deadline = self._clock() + self._settings.request_timeout_s
        # the last offset before the end is a transaction's marker, which a consumer never gets
        while self._next < end - 1:
            before = self._next
            records = self.records(0.05)
            if self._next != before:
                deadline = self._clock() + self._settings.request_timeout_s
            if records:
                yield records
            elif self._clock() > deadline:
                raise unavailable(self._settings, self._trouble)

    def _take(self, messages: list[Message]) -> list[Record]:
        values: list[Record] = []
        for message in messages:
            error = message.error()
            if error is None:
                self._next, self._trouble = (message.offset() or 0) + 1, None
                value = value_of(message) if self._asides else message.value()
                if value is not None:
                    values.append((message.offset() or 0, value))
            elif error.code() == KafkaError._PARTITION_EOF:
                # the end is past control records, which a consumer never gets
                self._next = max(self._next, message.offset() or 0)
            elif unreached(error):
                # it may come back, also to a login that was revoked; who waits for records has a deadline
                self._trouble = error
            elif not error.retriable():
                raise KafkaException(error)
        return values


def _watermarks(settings: Settings, client: Consumer, topic: str) -> tuple[int, int]:
    """First offset and last stable offset of a topic's only partition. Raises TopicGone if there is no topic, else
    KafkaException: another client may know more.
    """

    def ask(led_s: float) -> tuple[int, int]:
        # `led_s`: how long a new client may not know the topic
        return once_led(
            lambda: client.get_watermark_offsets(TopicPartition(topic, 0), timeout=settings.request_timeout_s), led_s
        )

    try:
        return ask(min(LED_S, settings.request_timeout_s))
    except KafkaException as unled:
        if unled.args[0].code() not in (*NO_TOPIC, *UNLED):
            raise
        if unled.args[0].code() in NO_TOPIC and partition_count(settings, topic) is None:
            raise TopicGone(topic) from unled
        return ask(settings.request_timeout_s)


def read_tail(settings: Settings, topic: str, records: int = 1, *, kept: Kept | None = None) -> list[bytes]:
    """The last `records` committed values of a topic's only partition, oldest first; fewer if there are fewer."""
    try:
        return reading(settings, kept, lambda client: _tail(settings, client, topic, records))
    except KafkaException as error:
        raise failure(settings, error.args[0], topic=topic) from error


def _tail(settings: Settings, client: Consumer, topic: str, records: int) -> list[bytes]:
    first, end = _watermarks(settings, client, topic)
    back = max(16, records * 4)
    while True:
        start = max(first, end - back)
        values = _range(settings, client, topic, start)
        if len(values) >= records or start == first:
            return values[-records:]
        back *= 8


def _range(settings: Settings, client: Consumer, topic: str, start: int) -> list[bytes]:
    """The committed values from offset `start` to the end. Raises KafkaException, also if nothing more comes."""
    client.assign([TopicPartition(topic, 0, start)])
    values: list[bytes] = []
    deadline = time.monotonic() + settings.request_timeout_s
    while time.monotonic() < deadline:
        for message in drain(client, 0.2):
            error = message.error()
            value = message.value()
            if error is None:
                # a long tail takes longer than one answer
                deadline = time.monotonic() + settings.request_timeout_s
                if value is not None:
                    values.append(value)
            elif error.code() == KafkaError._PARTITION_EOF:
                return values
            elif not error.retriable():
                raise KafkaException(error)
    # a kept client may know the leader of a topic that was recreated since; then a new one is asked
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


class FencedWriter:
    """The only writer of a log, one step at a time, without a lock: whoever starts a step fences all others.

    The producer is kept for a while, as a busy operator takes many steps. That is safe: if another writer has started
    a step since, this producer is fenced, and the step is done again with a new one.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        writer_id: str,
        *,
        attempts: int = 12,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._writer_id = writer_id
        self._attempts = attempts
        self._sleep = sleep
        self._clock = clock
        self._kept: tuple[Producer, float] | None = None

    def append(self, decide: Callable[[], Sequence[bytes]]) -> int:
        """One step. Returns the offset after what it wrote, 0 if nothing. If `decide` raises, nothing is written.

        1. `init_transactions`, unless this writer's last step was just now; 2. `decide()` reads the log to its end,
        checks what this step depends on and returns what to write; 3. write; 4. commit. If fenced: again, with jitter.
        """
        last: KafkaException | None = None
        for attempt in range(self._attempts):
            if attempt:
                self._sleep(random.uniform(0.02, 0.15) * min(attempt, 5))
            try:
                client = self._producer()
                values = decide()
                if not values:
                    self._kept = client, self._clock()
                    return 0
                client.begin_transaction()
                ends = _send(client, self._topic, values)
                client.commit_transaction(self._settings.request_timeout_s)
                self._kept = client, self._clock()
                return max(ends)
            except KafkaException as error:
                last = error
                if not _again(error.args[0]):
                    raise self._failure(error) from error
        if last is not None and last.args[0].code() not in _OTHERS:
            raise self._failure(last) from last
        raise SwitchyardError(
            f"the log {self._topic} could not be written: fenced {self._attempts} times ({last})",
            fix="run `switchyard operations` to see who else writes, then try again",
        )

    def _failure(self, error: KafkaException) -> SwitchyardError:
        return failure(self._settings, error.args[0], topic=self._topic, transactional_id=self._writer_id)

    def _producer(self) -> Producer:
        kept, self._kept = self._kept, None
        if kept is not None and self._clock() - kept[1] < _KEEP_S:
            return kept[0]
        client = producer(
            self._settings,
            transactional_id=self._writer_id,
            transaction_timeout_ms=30_000,
            linger_ms=0,
            compression_type="none",
        )
        await_connection(client, self._topic)
        client.init_transactions(self._settings.request_timeout_s)
        return client


def _send(client: Producer, topic: str, values: Iterable[bytes]) -> list[int]:
    ends: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            ends.append((message.offset() or 0) + 1)

    for value in values:
        aside = isinstance(value, Aside)
        try:
            client.produce(
                topic,
                value=None if aside else value,
                key=bytes(value) if aside else None,
                partition=0,
                on_delivery=delivered,
            )
        except KafkaException as error:
            # fenced since the previous record: the client then only says that it can't be used any more
            if error.args[0].code() == KafkaError._FATAL:
                raise KafkaException(KafkaError(KafkaError._FENCED, error.args[0].str())) from error
            raise
    client.flush()
    # a record without an acknowledgment fails the commit, so here the list isn't empty
    return ends or [0]


# another writer's step came in between
_OTHERS = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH,
           KafkaError.CONCURRENT_TRANSACTIONS, KafkaError._STATE)  # fmt: skip


def _again(error: KafkaError) -> bool:
    if forbidden(error):
        # a retry would fail the same way, twelve times, and then look like fencing
        return False
    return error.code() in _OTHERS or error.txn_requires_abort()
