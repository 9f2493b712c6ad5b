"""What a follower acts on: the registry, and the newest progress of its release. One consumer reads both."""

from __future__ import annotations

import logging
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pipelines.errors import Unavailable
from pipelines.kafka.client import consumer
from pipelines.kafka.failures import failure, unavailable
from pipelines.kafka.log import Record, value_of
from pipelines.kafka.snapshots import Folding, newest_snapshot
from pipelines.model.names import REGISTRY_TOPIC, progress_topic
from pipelines.model.progress import Progress, read_progress
from pipelines.model.registry import RegistryState
from pipelines.model.unread import Unread
from pipelines.settings import Settings

_log = logging.getLogger(__name__)

# how long a fetch waits without new records; a new record ends it at once. A topic that is assigned meanwhile, at a
# switch, waits for it. With this value an idle follower asks about 10 times a second on each of two connections
FETCH_WAIT_MS = 100
# how many records to look back for the newest progress: a batch takes two offsets, an aborted one more
LOOK_BACK = 32


class Control:
    """Reads the registry from its newest snapshot, and one release's progress from its newest record.

    A progress record is shown only after the registry was read to its end after it. Otherwise a follower could know
    that a result continues, but not that a switch moves it to another result. As long as the registry has an entry
    about `alias` that must be understood but can't be, no newer progress is shown: it may include results past an
    unknown cut.
    """

    def __init__(self, settings: Settings, alias: str) -> None:
        self._settings = settings
        self._alias = alias
        self._told: str | None = None
        self._consumer, self._asking = _clients(settings)
        try:
            self._find_leader(REGISTRY_TOPIC)
            self._folding = Folding(newest_snapshot(settings, self._range(REGISTRY_TOPIC)[1]))
        except BaseException:
            self.close()
            raise
        self._next = {REGISTRY_TOPIC: self._folding.start}
        self._consumer.assign([TopicPartition(REGISTRY_TOPIC, 0, self._folding.start)])
        self._watched: str | None = None
        self._incoming: list[Progress] = []
        self._progress: Progress | None = None

    def close(self) -> None:
        self._consumer.close()
        self._asking.close()

    def reconnect(self) -> None:
        """Goes on with new clients, and watches no progress until `watch` is called. Raises Unavailable; then call it
        again.
        """
        old = self._consumer, self._asking
        self._consumer, self._asking = _clients(self._settings)
        for client in old:
            client.close()
        self._next = {REGISTRY_TOPIC: self._next[REGISTRY_TOPIC]}
        self._watched, self._incoming, self._progress = None, [], None
        self._find_leader(REGISTRY_TOPIC)
        self._consumer.assign([TopicPartition(REGISTRY_TOPIC, 0, self._next[REGISTRY_TOPIC])])

    @property
    def state(self) -> RegistryState:
        """The registry as read so far."""
        return self._folding.state

    @property
    def held(self) -> Unread | None:
        """The entry that makes this follower wait: it must be understood, and this version can't read it."""
        return self.state.not_understood(self._alias)

    @property
    def progress(self) -> Progress | None:
        """The newest progress record of the watched release; None if it has none."""
        return self._progress

    def watch(self, release: str | None) -> None:
        """Watches the progress of `release`, and of no other."""
        topic = progress_topic(release) if release else None
        if topic == self._watched:
            return
        if self._watched is not None:
            self._consumer.incremental_unassign([TopicPartition(self._watched, 0)])
            del self._next[self._watched]
        self._watched, self._incoming, self._progress = None, [], None
        if topic is None:
            return
        try:
            self._from_newest(topic)
        except Unavailable:
            self._next.pop(topic, None)
            self._consumer.assign([TopicPartition(t, 0, o) for t, o in self._next.items()])
            raise
        self._watched = topic
        self._adopt()

    def sync(self) -> RegistryState:
        """The current registry. Raises Unavailable if the broker doesn't answer in time."""
        self._read_to(REGISTRY_TOPIC, self._range(REGISTRY_TOPIC)[1])
        return self.state

    def poll(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` for new records and reads all of them. Returns whether there were any; False without
        a broker.
        """
        news = self._take(self._consumer.consume(num_messages=1, timeout=timeout_s))
        if news:
            self._take(self._consumer.consume(num_messages=1000, timeout=0))
        try:
            self._adopt()
        except Unavailable:
            return False  # the waiting progress is adopted once the broker is back
        return news

    def _adopt(self) -> None:
        while self._incoming:
            newest, known = self._incoming[-1], len(self._incoming)
            self.sync()  # may bring more
            if self.held is not None:
                self._tell(f"waits, because this version of Switchyard can't read {self.held}; upgrade Switchyard here")
                # afterwards only the newest is needed
                del self._incoming[:-1]
                return
            self._tell(None)
            self._progress = newest
            del self._incoming[:known]

    def _tell(self, what: str | None) -> None:
        """Logs `what`, unless it is what was logged last."""
        if what is not None and what != self._told:
            _log.warning("follower of %s: %s", self._alias, what)
        self._told = what

    def _find_leader(self, topic: str) -> None:
        """Makes the consumer learn the leader of a topic before it is assigned; after an assignment alone, that takes a
        second or more. Raises Unavailable without an answer.
        """
        try:
            self._consumer.list_topics(topic, timeout=self._settings.request_timeout_s)
        except KafkaException as error:
            raise failure(self._settings, error.args[0], topic=topic) from error

    def _from_newest(self, topic: str) -> None:
        self._find_leader(topic)
        first, end = self._range(topic)
        back = LOOK_BACK
        while True:
            start = max(first, end - back)
            self._next[topic] = start
            self._consumer.incremental_assign([TopicPartition(topic, 0, start)])
            self._read_to(topic, end)
            if self._incoming or start == first:
                return
            self._consumer.incremental_unassign([TopicPartition(topic, 0)])
            back *= 8

    def _range(self, topic: str) -> tuple[int, int]:
        """First and end offset of committed records. Raises Unavailable without an answer."""
        try:
            # the client's types don't say that it may return None
            found: Any = self._asking.get_watermark_offsets(
                TopicPartition(topic, 0), timeout=self._settings.request_timeout_s
            )
        except KafkaException as error:
            if error.args[0].code() in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART):
                return 0, 0
            raise failure(self._settings, error.args[0], topic=topic) from error
        return (0, 0) if found is None else (found[0], found[1])

    def _read_to(self, topic: str, end: int) -> None:
        deadline = time.monotonic() + self._settings.request_timeout_s
        while (before := self._next[topic]) < end:
            self._take(self._consumer.consume(num_messages=1, timeout=0.05))
            self._take(self._consumer.consume(num_messages=10_000, timeout=0))
            if self._next[topic] != before:
                # the timeout restarts with each record: a long log takes longer than one request
                deadline = time.monotonic() + self._settings.request_timeout_s
            elif time.monotonic() > deadline:
                raise unavailable(self._settings, None)

    def _take(self, messages: list[Message]) -> bool:
        entries: list[Record] = []
        newest: Progress | None = None
        for message in messages:
            topic, offset, error = message.topic() or "", message.offset() or 0, message.error()
            if topic not in self._next:
                continue  # of a release that was watched before
            if error is None:
                self._next[topic] = offset + 1
                value = value_of(message) if topic == REGISTRY_TOPIC else message.value()
                if value is not None and topic == REGISTRY_TOPIC:
                    entries.append((offset, value))
                elif value is not None:
                    newest = self._read_progress(topic, offset, value) or newest
            elif error.code() == KafkaError._PARTITION_EOF:
                # the end is past control records, which a consumer never gets
                self._next[topic] = max(self._next[topic], offset)
            elif not passing(error):
                raise KafkaException(error)
        if not self._folding.take(entries):
            # the snapshot came from another registry
            self._next[REGISTRY_TOPIC] = 0
            self._consumer.assign([TopicPartition(t, 0, o) for t, o in self._next.items()])
        if newest is not None:
            self._incoming.append(newest)
        return bool(entries) or newest is not None

    def _read_progress(self, topic: str, offset: int, value: bytes) -> Progress | None:
        """A progress record, or None if it can't be read: then the previous one says how far the follower may go."""
        try:
            return read_progress(value)
        except ValueError as error:
            _log.warning("follower of %s: waits, because record %d of %s can't be read: %s; upgrade Switchyard here",
                         self._alias, offset, topic, error)  # fmt: skip
            return None


def _clients(settings: Settings) -> tuple[Consumer, Consumer]:
    """One that reads, and one that only asks for the ends of topics: on the first, a request would queue after a waiting
    fetch.
    """
    reads = consumer(settings, auto_offset_reset="earliest", fetch_wait_max_ms=FETCH_WAIT_MS, enable_partition_eof=True)
    return reads, consumer(settings)


def passing(error: KafkaError) -> bool:
    """Whether the client recovers from this error by itself: it reconnects and asks again."""
    return error.retriable() or error.code() in (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
    )
