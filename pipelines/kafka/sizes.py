"""How large the records of topics are, by a sample."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, TopicPartition

from pipelines.errors import Unavailable
from pipelines.kafka.client import consumer, drain
from pipelines.kafka.offsets import end_offsets, first_offsets
from pipelines.settings import Settings

# of each partition at its beginning, in its middle and at its end
_SAMPLE_RECORDS = 100
_FETCH_BYTES = 131_072


def record_bytes(settings: Settings, start: Mapping[str, Mapping[int, int]]) -> int | None:
    """Bytes of key and value of a record, as far as the sample tells: the largest of the averages at beginnings, middles and ends.

    `start`: topic -> partition -> offset from which on it is looked at. None: there is no record. Raises Unavailable where
    Kafka doesn't answer.
    """
    topics = sorted(start)
    first, end = first_offsets(settings, topics), end_offsets(settings, topics)
    averages = []
    client = consumer(settings, auto_offset_reset="earliest", enable_partition_eof=True, fetch_wait_max_ms=20,
                      fetch_message_max_bytes=_FETCH_BYTES)  # fmt: skip
    try:
        for topic in topics:
            spans = {p: (max(start[topic].get(p, 0), first[topic][p]), last) for p, last in end[topic].items()}
            for places in _places(spans):
                sizes = _sizes(settings, client, topic, places)
                averages += [sum(sizes) // len(sizes)] if sizes else []
    finally:
        client.close()
    return max(averages, default=None)


def _places(spans: Mapping[int, tuple[int, int]]) -> list[dict[int, int]]:
    """Offsets of each partition from which a sample is taken: at the beginning, in the middle, before the end."""
    there = {p: (begin, end) for p, (begin, end) in spans.items() if end > begin}
    found = [
        {
            p: max(begin, min(begin + (end - begin) * part // 2, end - _SAMPLE_RECORDS))
            for p, (begin, end) in there.items()
        }
        for part in range(3)
    ]
    return [places for number, places in enumerate(found) if places and places not in found[:number]]


def _sizes(settings: Settings, client: Consumer, topic: str, places: Mapping[int, int]) -> list[int]:
    left = dict.fromkeys(places, _SAMPLE_RECORDS)
    sizes: list[int] = []
    client.assign([TopicPartition(topic, p, offset) for p, offset in places.items()])
    deadline = time.monotonic() + settings.request_timeout_s
    while left:
        messages = drain(client, settings.request_timeout_s)
        if not messages or time.monotonic() > deadline:
            raise Unavailable(f"{topic} could not be read to see how large its records are", fix="see the broker's log")
        for message in messages:
            error, partition = message.error(), message.partition() or 0
            if error is not None:
                # the end of a partition, which a control record may be before
                if error.code() == KafkaError._PARTITION_EOF:
                    left.pop(partition, None)
            elif partition in left:
                sizes.append(len(message.key() or b"") + len(message.value() or b""))
                left[partition] -= 1
                if not left[partition]:
                    del left[partition]
    client.unassign()
    return sizes
