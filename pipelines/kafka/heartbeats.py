"""Heartbeats: one small record per driver and second. Readers get the newest one per release."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message, TopicPartition

from pipelines.kafka.client import drain, once_led
from pipelines.kafka.failures import failure, unavailable
from pipelines.kafka.kept import Kept, reading
from pipelines.kafka.log import LogReader
from pipelines.kafka.offsets import end_of
from pipelines.kafka.topics import partition_count
from pipelines.model.names import HEARTBEATS_TOPIC
from pipelines.model.progress import Heartbeat, read_heartbeat
from pipelines.settings import Settings

log = logging.getLogger(__name__)

# records: some seconds of some drivers
_LOOK_BACK = 64
# by then a new client knows the leader, if there is one
_LED_S = 1.0
_NO_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


def latest_heartbeats(
    settings: Settings, *, window_s: float = 60.0, now_ms: int | None = None, kept: Kept | None = None
) -> dict[str, Heartbeat]:
    """Release -> the newest heartbeat of its newest driver, from the last `window_s` seconds.

    Its time is the broker's if the topic's records carry that, otherwise the driver's own. Raises Unavailable without
    a broker.
    """
    from_ms = (now_ms or time.time_ns() // 1_000_000) - int(window_s * 1000)
    try:
        messages = reading(settings, kept, lambda client: list(_since(settings, client, from_ms)))
    except KafkaException as error:
        raise failure(settings, error.args[0], topic=HEARTBEATS_TOPIC) from error
    found: dict[str, Heartbeat] = {}
    for message in messages:
        beat = _read(message.value() or b"")
        if beat is None:
            continue
        stamp, at_ms = message.timestamp()
        if stamp == TIMESTAMP_LOG_APPEND_TIME:
            beat = beat.model_copy(update={"at_ms": at_ms})
        # a driver that was taken over may send one more heartbeat when it wakes up
        if beat.release not in found or beat.token >= found[beat.release].token:
            found[beat.release] = beat
    return found


def _since(settings: Settings, client: Consumer, at_ms: int) -> Iterator[Message]:
    """The records from `at_ms` up to now. Raises Unavailable if they don't arrive in time."""
    since = TopicPartition(HEARTBEATS_TOPIC, 0, at_ms)
    deadline = time.monotonic() + settings.request_timeout_s
    try:
        start = _start(settings, client, since, _LED_S)
    except KafkaException as unled:
        # the topic was deleted. No driver is heard until one creates it again; `status` says so
        if unled.args[0].code() not in _NO_TOPIC:
            raise
        if partition_count(settings, HEARTBEATS_TOPIC) is None:
            return
        start = _start(settings, client, since, settings.request_timeout_s)
    if start.error is not None or start.offset < 0:
        return
    client.assign([start])
    while time.monotonic() < deadline:
        for message in drain(client, 0.2):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return
            if error is None and message.value() is not None:
                yield message
    raise unavailable(settings, None)


def _start(settings: Settings, client: Consumer, since: TopicPartition, led_s: float) -> TopicPartition:
    """Where the records from a time on start. `led_s`: how long a new client may not know the topic."""
    found: list[TopicPartition] = once_led(
        lambda: client.offsets_for_times([since], timeout=settings.request_timeout_s), led_s
    )
    return found[0]


class HeartbeatTail:
    """Heartbeats as they arrive, from some seconds ago on."""

    def __init__(self, settings: Settings) -> None:
        start = max(0, end_of(settings, HEARTBEATS_TOPIC, 1)[0] - _LOOK_BACK)
        self._reader = LogReader(settings, HEARTBEATS_TOPIC, start=start)

    def poll(self, timeout_s: float) -> list[Heartbeat]:
        """Waits up to `timeout_s` for the next ones."""
        return [beat for beat in map(_read, self._reader.poll(timeout_s)) if beat is not None]

    def close(self) -> None:
        self._reader.close()


def _read(value: bytes) -> Heartbeat | None:
    try:
        return read_heartbeat(value)
    except ValueError as error:
        log.warning("a record of %s can't be read as a heartbeat: %s", HEARTBEATS_TOPIC, error)
        return None
