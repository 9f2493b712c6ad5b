"""How large the records of topics are, from samples."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from pipelines.kafka.client import consumer, drain, own
from pipelines.kafka.offsets import end_offsets, first_offsets
from pipelines.model.limits import Size
from pipelines.settings import Settings

# sample size of each partition at its start, middle and end; with fewer records in total, one place says little
_SAMPLE_RECORDS = 100
_FEW_RECORDS = 50
# limits of a sample: it must not delay anything, so whatever has arrived by then is used
_PLACE_BYTES = 4 * 2**20
_PLACE_S = 2.0
_FETCH_BYTES = 131_072

Spans = Mapping[int, tuple[int, int]]


def sizes_of(
    settings: Settings, start: Mapping[str, Mapping[int, int]], *, client: AdminClient | None = None
) -> dict[str, Size | None]:
    """Topic -> size of its records from `start` on, or of the last ones before it; None: no records.

    `start`: topic -> partition -> offset. The size is the largest of the averages at the start, in the middle and at
    the end. Raises Refused for a topic that doesn't exist, Unavailable if Kafka doesn't answer.
    """
    topics = sorted(start)
    asked = own(settings, client)
    first, end = first_offsets(settings, topics, client=asked), end_offsets(settings, topics, client=asked)
    reader = consumer(settings, auto_offset_reset="earliest", enable_partition_eof=True, fetch_wait_max_ms=20,
                      fetch_message_max_bytes=_FETCH_BYTES)  # fmt: skip
    try:
        return {
            topic: _size(settings, reader, topic, spans_of(first[topic], start[topic], end[topic])) for topic in topics
        }
    finally:
        reader.close()


def spans_of(first: Mapping[int, int], start: Mapping[int, int], end: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Partition -> offsets [begin, end) to sample: what is still to be read, and earlier records if that is little."""
    spans = {}
    for p, last in end.items():
        begin = max(first.get(p, 0), min(start.get(p, 0), last - _SAMPLE_RECORDS))
        if last > begin:
            spans[p] = begin, last
    return spans


def places_of(spans: Spans) -> list[dict[int, int]]:
    """Where to take samples, as partition -> offset: at the start, in the middle, before the end."""
    found = [
        {
            p: max(begin, min(begin + (end - begin) * part // 2, end - _SAMPLE_RECORDS))
            for p, (begin, end) in spans.items()
        }
        for part in range(3)
    ]
    return [places for number, places in enumerate(found) if places and places not in found[:number]]


def average(samples: list[list[int]]) -> int | None:
    """The largest average of the samples, in bytes. If all have few records: the average over all. None: no records."""
    many = [sample for sample in samples if len(sample) >= _FEW_RECORDS]
    chosen = many or [[size for sample in samples for size in sample]]
    return max((sum(sample) // len(sample) for sample in chosen if sample), default=None)


def _size(settings: Settings, client: Consumer, topic: str, spans: Spans) -> Size | None:
    found = average([_sample(settings, client, topic, places) for places in places_of(spans)])
    records = sum(end - begin for begin, end in spans.values())
    return None if found is None else Size(record_bytes=found, records=records)


def _sample(settings: Settings, client: Consumer, topic: str, places: Mapping[int, int]) -> list[int]:
    """Sizes in bytes of key and value of some records from `places` (partition -> offset) on."""
    left = dict.fromkeys(places, _SAMPLE_RECORDS)
    sizes: list[int] = []
    client.assign([TopicPartition(topic, p, offset) for p, offset in places.items()])
    deadline = time.monotonic() + min(_PLACE_S, settings.request_timeout_s)
    while left and sum(sizes) < _PLACE_BYTES and (left_s := deadline - time.monotonic()) > 0:
        for message in drain(client, left_s):
            error, partition = message.error(), message.partition() or 0
            if error is not None:
                # the end of a partition; control records may come before it
                if error.code() == KafkaError._PARTITION_EOF:
                    left.pop(partition, None)
            elif message.topic() == topic and partition in left:
                sizes.append(len(message.key() or b"") + len(message.value() or b""))
                left[partition] -= 1
                if not left[partition]:
                    del left[partition]
    client.unassign()
    return sizes
