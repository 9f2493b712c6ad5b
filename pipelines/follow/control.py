"""What moves a follower: the registry, and the newest progress of the release that it reads. One consumer for both."""

from __future__ import annotations

import logging
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pipelines.errors import Unavailable
from pipelines.kafka.client import consumer, failure, unavailable
from pipelines.kafka.log import Record, value_of
from pipelines.kafka.snapshots import Folding, newest_snapshot
from pipelines.model.names import REGISTRY_TOPIC, progress_topic
from pipelines.model.progress import Progress, read_progress
from pipelines.model.registry import RegistryState
from pipelines.model.unread import Unread
from pipelines.settings import Settings

_log = logging.getLogger(__name__)

# how long a fetch waits where there is nothing new: a record that comes ends it at once. A topic that is assigned
# meanwhile, at a switch, waits for it. So an idle follower asks about 10 times a second on each of two connections
FETCH_WAIT_MS = 100
# records looked back for the newest progress: a batch takes two offsets, and aborted ones more
LOOK_BACK = 32


class Control:
    """Reads the registry, from its newest snapshot on, and one release's progress from its newest record on.

    A progress record is shown only after the registry was read to its end behind it: else a follower could know that
    a result goes on and not that it was told to leave it. While the registry has an entry about `alias` that must be
    understood and can't be, no newer progress is shown: it may speak of results past a cut that isn't known here.
    """

    def __init__(self, settings: Settings, alias: str) -> None:
        self._settings = settings
        self._alias = alias
        self._told: str | None = None
        self._consumer: Consumer = consumer(
            settings, auto_offset_reset="earliest", fetch_wait_max_ms=FETCH_WAIT_MS, enable_partition_eof=True
        )
        # asks for the ends of topics and fetches nothing: behind the other's waiting fetch a question would have to queue
        self._asking: Consumer = consumer(settings)
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

    @property
    def state(self) -> RegistryState:
        """The registry as read so far."""
        return self._folding.state

    @property
    def held(self) -> Unread | None:
        """The entry for which this follower waits where it is: it must be understood, and this version can't read it."""
        return self.state.not_understood(self._alias)

    @property
    def progress(self) -> Progress | None:
        """The newest progress record of the watched release; None if it has none."""
        return self._progress

    def watch(self, release: str | None) -> None:
        """Follows the progress of `release`, and of no other."""
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
        """The registry as it is now. Raises Unavailable if the broker doesn't answer in time."""
        self._read_to(REGISTRY_TOPIC, self._range(REGISTRY_TOPIC)[1])
        return self.state

    def poll(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` for news; reads all there is. Whether there was any. A broker away is no news."""
        news = self._take(self._consumer.consume(num_messages=1, timeout=timeout_s))
        if news:
            self._take(self._consumer.consume(num_messages=1000, timeout=0))
        try:
            self._adopt()
        except Unavailable:
            return False  # the progress that waits is adopted once the broker is back
        return news

    def _adopt(self) -> None:
        while self._incoming:
            newest, known = self._incoming[-1], len(self._incoming)
            self.sync()  # may bring more
            if self.held is not None:
                self._tell(f"waits where it is: this version of Switchyard can't read {self.held}; upgrade it here")
                # the newest alone is needed once that is over
                del self._incoming[:-1]
                return
            self._tell(None)
            self._progress = newest
            del self._incoming[:known]

    def _tell(self, what: str | None) -> None:
        """Logs it, unless it was told already."""
        if what is not None and what != self._told:
            _log.warning("follower of %s: %s", self._alias, what)
        self._told = what

    def _find_leader(self, topic: str) -> None:
        """Has the consumer know the leader of a topic before it is assigned: by an assignment alone it would learn it a
        second or more later. Raises Unavailable without an answer.
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
            # the client's types leave out that it may know nothing
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
                # a long log takes longer than one request
                deadline = time.monotonic() + self._settings.request_timeout_s
            elif time.monotonic() > deadline:
                raise unavailable(self._settings, None)

    def _take(self, messages: list[Message]) -> bool:
        entries: list[Record] = []
        newest: Progress | None = None
        for message in messages:
            topic, offset, error = message.topic() or "", message.offset() or 0, message.error()
            if topic not in self._next:
                continue  # of a release watched before
            if error is None:
                self._next[topic] = offset + 1
                value = value_of(message) if topic == REGISTRY_TOPIC else message.value()
                if value is not None and topic == REGISTRY_TOPIC:
                    entries.append((offset, value))
                elif value is not None:
                    newest = self._read_progress(topic, offset, value) or newest
            elif error.code() == KafkaError._PARTITION_EOF:
                # the end lies past control records, which are never shown
                self._next[topic] = max(self._next[topic], offset)
            elif not passing(error):
                raise KafkaException(error)
        if not self._folding.take(entries):
            # the snapshot was of another registry
            self._next[REGISTRY_TOPIC] = 0
            self._consumer.assign([TopicPartition(t, 0, o) for t, o in self._next.items()])
        if newest is not None:
            self._incoming.append(newest)
        return bool(entries) or newest is not None

    def _read_progress(self, topic: str, offset: int, value: bytes) -> Progress | None:
        """A progress record; None where it can't be read: then the newest before it says how far the follower may go."""
        try:
            return read_progress(value)
        except ValueError as error:
            _log.warning("follower of %s: waits, as record %d of %s can't be read: %s; upgrade Switchyard here",
                         self._alias, offset, topic, error)  # fmt: skip
            return None


def passing(error: KafkaError) -> bool:
    """Whether the client gets over this error by itself: it reconnects and asks again."""
    return error.retriable() or error.code() in (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
    )
