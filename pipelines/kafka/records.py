"""Reads the committed records of a range of a result, and stops at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from pipelines.errors import Unavailable
from pipelines.kafka.client import drain
from pipelines.model.positions import told_offsets


def read_changes(
    client: Consumer,
    topic: str,
    start: Mapping[int, int],
    end: Mapping[int, int],
    timeout_s: float,
    raise_if_closed: Callable[[], None] = lambda: None,
) -> tuple[dict[str, str | None], dict[int, int]]:
    """Key -> last value (None: deleted) of the committed records of a result topic in [start, end), and the offsets
    after the last of them, which may be before `end` if a transaction marker comes last. Raises as `read_records`.
    """
    reached = dict(start)
    found: dict[str, str | None] = {}
    for messages in read_records(client, topic, start, end, timeout_s, raise_if_closed, reached):
        # without a Python loop per record: these are hundreds of thousands, and consumers wait
        found.update(zip(map(key_of, messages), map(value_of, messages), strict=True))
    return found, reached


def read_records(
    client: Consumer,
    topic: str,
    start: Mapping[int, int],
    end: Mapping[int, int],
    timeout_s: float,
    raise_if_closed: Callable[[], None],
    reached: dict[int, int],
) -> Iterator[list[Message]]:
    """The committed records of a result topic in [start, end), as they arrive. Keeps `reached` at the offset after the
    last.

    Assigns `client` to the topic. Calls `raise_if_closed` now and then; what it raises ends the reading. Raises Unavailable
    if nothing arrives for `timeout_s` seconds.
    """
    wanted = {p: o for p, o in end.items() if o > start.get(p, 0)}
    client.assign([TopicPartition(topic, p, start.get(p, 0)) for p in wanted])
    while wanted:
        raise_if_closed()
        messages = drain(client, timeout_s)
        if not messages:
            raise Unavailable(
                f"records up to {told_offsets(topic, end)} could not be read: none has arrived for {timeout_s:g} s",
                fix="see the broker's log, then try again",
            )
        passed = _all_before(messages, topic, wanted)
        if passed is not None:
            reached |= passed
            yield messages
            continue
        records = []
        for message in messages:
            error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
            if message.topic() != topic or partition not in wanted:
                continue
            if error is None:
                if offset < wanted[partition]:
                    records.append(message)
                    reached[partition] = offset + 1
                # the last record before the end may be a transaction marker, which is never delivered
                ended = offset + 1 >= wanted[partition]
            elif error.code() == KafkaError._PARTITION_EOF:
                ended = offset >= wanted[partition]
            elif error.retriable():
                ended = False
            else:
                raise KafkaException(error)
            if ended:
                del wanted[partition]
                # records past the end are not wanted
                client.incremental_unassign([TopicPartition(topic, partition)])
        yield records
    client.unassign()


def _all_before(messages: list[Message], topic: str, ends: Mapping[int, int]) -> dict[int, int] | None:
    """The offsets after `messages`, if all are records of `topic` and no partition has reached its end; otherwise None."""
    # an error can't be compared with None
    if any(e is not None for e in map(Message.error, messages)) or any(
        t != topic for t in map(Message.topic, messages)
    ):
        return None
    # the last one per partition, because they arrive in order
    last = dict(zip(map(Message.partition, messages), map(Message.offset, messages), strict=True))
    after = {p: o + 1 for p, o in last.items() if p is not None and o is not None}
    return after if all(o < ends.get(p, 0) for p, o in after.items()) else None


def key_of(message: Message) -> str:
    return (message.key() or b"").decode()


def value_of(message: Message) -> str | None:
    value = message.value()
    return None if value is None else value.decode()
