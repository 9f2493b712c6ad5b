"""Reads one topic at a time, each partition only up to a given offset."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pipelines.errors import SwitchyardError
from pipelines.follow.control import FETCH_WAIT_MS, passing
from pipelines.follow.moves import AFRESH
from pipelines.kafka.client import UNCOORDINATED, consumer, once_led
from pipelines.kafka.failures import failure
from pipelines.settings import Settings

_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Batch:
    """Records in order per partition. `reached`: partition -> offset reached, past those without a record."""

    messages: list[Message]
    reached: dict[int, int]


class DataReader:
    """The records of a topic, read committed, up to a bound per partition. Records past the bound wait.

    Offsets without a record (ends of transactions, aborted and compacted records) count as read once the bound is past
    them.
    """

    def __init__(self, settings: Settings, group: str) -> None:
        self._settings = settings
        self._group = group
        self._consumer: Consumer = consumer(
            settings,
            group_id=group,
            enable_partition_eof=True,
            fetch_wait_max_ms=FETCH_WAIT_MS,
            queued_max_messages_kbytes=16_384,
        )
        self._topic = ""
        self._held: dict[int, deque[Message]] = {}
        self._ends: dict[int, int] = {}

    def close(self) -> None:
        self._consumer.close()

    def commit(self, offsets: Sequence[TopicPartition]) -> None:
        """Commits all of `offsets` for the group at once. Waits while the group's coordinator moves to another broker, as
        long as a request may take. Raises as `failure` says: Unavailable during an outage.
        """
        if not offsets:
            return
        try:
            once_led(
                lambda: self._consumer.commit(offsets=list(offsets), asynchronous=False),
                self._settings.request_timeout_s,
                passing=UNCOORDINATED,
            )
        except KafkaException as error:
            raise failure(self._settings, error.args[0], topic=offsets[0].topic, group=self._group) from error

    def partitions(self, topic: str) -> int:
        """Number of partitions of `topic`. Raises SwitchyardError if there is no such topic."""
        try:
            found = self._consumer.list_topics(topic, timeout=self._settings.request_timeout_s).topics[topic]
        except KafkaException as error:
            raise failure(self._settings, error.args[0], topic=topic) from error
        if found.error is not None and found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise failure(self._settings, found.error, topic=topic)
        if not found.partitions:
            raise _gone(topic)
        return len(found.partitions)

    def assign(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Continues with `topic` at these offsets, and forgets everything else."""
        self.partitions(topic)
        # a pause outlives an assignment: without this, a partition would stay paused when we return to this topic
        self._consumer.resume([TopicPartition(self._topic, p) for p in self._held])
        self._topic, self._held, self._ends = topic, {}, {}
        self._consumer.assign([TopicPartition(topic, p, o) for p, o in offsets.items()])

    def read(self, upto: Mapping[int, int], timeout_s: float) -> Batch:
        """Records before `upto` (partition -> offset) that are already there; waits for the first one."""
        messages: list[Message] = []
        for partition, end in upto.items():
            held = self._held.get(partition)
            if held is None:
                continue
            while held and (held[0].offset() or 0) < end:
                messages.append(held.popleft())
            if not held:
                del self._held[partition]
                self._consumer.resume([TopicPartition(self._topic, partition)])
        if not messages and any(self._reached(p, end) is None for p, end in upto.items()):
            messages += self._sort(self._consumer.consume(num_messages=1, timeout=timeout_s), upto)
            messages += self._sort(self._consumer.consume(num_messages=_AT_ONCE, timeout=0), upto)
        reached = {p: end for p, end in upto.items() if self._reached(p, end) is not None}
        return Batch(messages, reached)

    def _reached(self, partition: int, end: int) -> int | None:
        held = self._held.get(partition)
        if held and (held[0].offset() or 0) >= end:
            return end
        return end if self._ends.get(partition, -1) >= end else None

    def _sort(self, messages: list[Message], upto: Mapping[int, int]) -> list[Message]:
        inside: list[Message] = []
        for message in messages:
            partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
            if message.topic() != self._topic:
                continue
            if error is not None:
                self._bear(error, partition, offset)
            elif offset < upto.get(partition, 0) and partition not in self._held:
                inside.append(message)
                self._ends[partition] = offset + 1
            else:
                if partition not in self._held:
                    self._held[partition] = deque()
                    self._consumer.pause([TopicPartition(self._topic, partition)])
                self._held[partition].append(message)
        return inside

    def _bear(self, error: KafkaError, partition: int, offset: int) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            # if records of the partition are held back, its end is past them, so it isn't reached yet
            if partition not in self._held:
                self._ends[partition] = max(self._ends.get(partition, 0), offset)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise SwitchyardError(
                f"{self._topic}[{partition}] no longer has the record at the follower's offset: {error.str()}",
                fix=f"its records were deleted: {AFRESH}",
            )
        elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            self.partitions(self._topic)
        elif not passing(error):
            raise KafkaException(error)


def _gone(topic: str) -> SwitchyardError:
    return SwitchyardError(
        f"topic {topic}, which the follower was reading, is gone: its release was retired, or someone deleted the topic",
        fix=f"{AFRESH}. `retire` keeps the results that a registered follower still needs",
    )
