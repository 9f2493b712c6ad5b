"""Reads a topic from its first record to a position, committed records only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import monotonic
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

SILENCE_TIMEOUT_S = 30.0


class Record(NamedTuple):
    """One record of a topic. `source`: the header of that name, the record that this one was made from."""

    key: bytes | None
    value: bytes | None
    time_ms: int
    topic: str
    partition: int
    offset: int
    source: str | None


def read(
    bootstrap: str, topic: str, until: Mapping[int, int] | None = None, properties: Mapping[str, str] | None = None
) -> Iterator[Record]:
    """Records of `topic`, in order within a partition, up to but not including the offsets `until` (None: the present end).

    Raises LookupError for an unknown topic, TimeoutError when the broker falls silent.
    """
    consumer = _consumer(bootstrap, properties or {})
    try:
        found = consumer.list_topics(topic, timeout=10).topics[topic]
        if found.error is not None:
            raise LookupError(f"topic {topic}: {found.error.str()}")
        ends = {
            p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1]
            if until is None
            else until.get(p, 0)
            for p in found.partitions
        }
        left = {p for p, end in ends.items() if end > 0}
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in left])
        heard_s = monotonic()
        while left:
            # it waits for that many records or until the timeout, so the timeout is short
            messages = consumer.consume(10_000, timeout=0.1)
            if messages:
                heard_s = monotonic()
            elif monotonic() - heard_s > SILENCE_TIMEOUT_S:
                raise TimeoutError(f"nothing came from {topic} for {SILENCE_TIMEOUT_S:.0f} s")
            for message in messages:
                partition, offset = message.partition() or 0, message.offset() or 0
                error = message.error()
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    left.discard(partition)
                    continue
                if offset >= ends[partition] - 1:
                    left.discard(partition)
                if offset >= ends[partition]:
                    continue
                yield _record(message, topic, partition, offset)
    finally:
        consumer.close()


def _consumer(bootstrap: str, properties: Mapping[str, str]) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "ledger-unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 2,
            "enable.partition.eof": True,
            # a read ends with a fetch at the end; a client connects by the broker's id after half of the back-off
            "fetch.wait.max.ms": 1,
            "reconnect.backoff.ms": 20,
            # by default, a full queue stops fetching for a whole second
            "fetch.queue.backoff.ms": 5,
            "queued.max.messages.kbytes": 65_536,
            **properties,
        }
    )


def _record(message: Message, topic: str, partition: int, offset: int) -> Record:
    headers = message.headers()
    source = dict(headers).get("source") if headers else None
    at_ms = message.timestamp()[1]
    text = source.decode() if isinstance(source, bytes) else source
    return Record(message.key(), message.value(), at_ms, topic, partition, offset, text)
