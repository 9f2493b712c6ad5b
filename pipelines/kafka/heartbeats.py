"""Heartbeats: one small record per driver and second. Readers get the newest one per release.

Among them are the signs of life of processes that carry out operations: records without a value.
"""

from __future__ import annotations

import logging
import time

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message, TopicPartition

from pipelines.kafka.client import MOVED, drain, once_led
from pipelines.kafka.clock import BrokerClock
from pipelines.kafka.failures import failure, unavailable
from pipelines.kafka.kept import Kept, reading
from pipelines.kafka.log import LED_S, NO_TOPIC, LogReader
from pipelines.kafka.topics import partition_count
from pipelines.model.names import HEARTBEATS_TOPIC
from pipelines.model.progress import Heartbeat, read_heartbeat
from pipelines.model.signs import Sign, read_sign
from pipelines.settings import Settings

log = logging.getLogger(__name__)

# records: some seconds of some drivers
_LOOK_BACK = 64
# how long a heartbeat is kept after it left the window of a call, because the next call's window may be longer. Without
# a limit, a process that runs for months would keep one of every driver
_KEEP_MS = 600_000


def latest_heartbeats(settings: Settings, *, window_s: float = 60.0, now_ms: int | None = None) -> dict[str, Heartbeat]:
    """What `Heartbeats.latest` returns, for a single call."""
    return Heartbeats(settings).latest(window_s=window_s, now_ms=now_ms)


class Heartbeats:
    """What drivers have said of themselves. Each call reads only the records since the previous one.

    `kept`: the consumer of all calls. Without it each call makes one, and only one thread may call. `clock`: tells what
    time it is now, by the clock that stamps the records.
    """

    def __init__(self, settings: Settings, kept: Kept | None = None, clock: BrokerClock | None = None) -> None:
        self._settings = settings
        self._kept = kept
        self._clock = clock or BrokerClock(settings)
        # the next offset to read; None: nothing is read yet
        self._next: int | None = None
        # all records since this time are read; until when; the highest time of a record so far
        self._since_ms, self._read_ms, self._last_ms = 0, 0, 0
        # (release, token) -> that driver's newest heartbeat, and its time
        self._newest: dict[tuple[str, int], tuple[int, Heartbeat]] = {}
        # the time of each operation's and process's newest sign of life
        self._signs: dict[Sign, int] = {}
        # the times of records that can't be read
        self._unread_ms: list[int] = []

    @property
    def unread(self) -> int:
        """How many records of the last call's window this version can't read."""
        return len(self._unread_ms)

    def sign_ms(self, sign: Sign) -> int | None:
        """When `sign` was last given, in ms by the broker's clock; None: not in the time that the last call read."""
        return self._signs.get(sign)

    def latest(self, *, window_s: float | None = None, now_ms: int | None = None) -> dict[str, Heartbeat]:
        """Release -> the newest heartbeat of its newest driver, from the last `window_s` seconds.

        `window_s`: None: so long that a driver which is silent by now isn't taken for one that still starts. `now_ms`: the
        broker's time; None: it is asked. A heartbeat's time is the broker's if the topic's records carry that, otherwise
        the driver's own. Raises Unavailable without a broker.
        """
        if window_s is None:
            window_s = self._settings.boot_timeout_s + self._settings.lease_timeout_s
        until_ms = now_ms or self._clock.now_ms()
        from_ms = until_ms - int(window_s * 1000)
        try:
            return reading(self._settings, self._kept, lambda client: self._latest(client, from_ms, until_ms))
        except KafkaException as error:
            raise failure(self._settings, error.args[0], topic=HEARTBEATS_TOPIC) from error

    def _latest(self, client: Consumer, from_ms: int, until_ms: int) -> dict[str, Heartbeat]:
        deadline = time.monotonic() + self._settings.request_timeout_s
        # after a longer pause, what was read before doesn't count any more
        continues = self._since_ms <= from_ms <= self._read_ms
        offset = self._next_offset(client, deadline) if continues else None
        if offset is None:
            self._next, self._since_ms, self._last_ms = None, from_ms, 0
            self._newest.clear()
            self._signs.clear()
            self._unread_ms.clear()
            offset = self._first_offset_since(client, from_ms, deadline)
        if offset is None:
            return {}
        self._read(client, offset, deadline)
        self._read_ms = until_ms
        self._forget_before(from_ms - _KEEP_MS)
        self._unread_ms = [at_ms for at_ms in self._unread_ms if at_ms >= from_ms]
        found: dict[str, Heartbeat] = {}
        # sorted by token, so the newest driver replaces earlier ones
        for (release, _), (at_ms, beat) in sorted(self._newest.items(), key=lambda each: each[0]):
            if at_ms >= from_ms:
                found[release] = beat
        return found

    def _next_offset(self, client: Consumer, deadline: float) -> int | None:
        """The offset after the last record that was read; None: the topic doesn't have it, or its leader moves."""
        if self._next is None:
            return None
        topic = TopicPartition(HEARTBEATS_TOPIC, 0)
        try:
            # a kept consumer would notice much later that the topic was deleted
            first, end = once_led(lambda: client.get_watermark_offsets(topic, timeout=_left_s(deadline)), LED_S)
        except KafkaException as error:
            if error.args[0].code() not in (*NO_TOPIC, *MOVED):
                raise
            return None
        # if not, the topic was recreated, or retention deleted unread records
        return self._next if first <= self._next <= end else None

    def _first_offset_since(self, client: Consumer, from_ms: int, deadline: float) -> int | None:
        """The offset of the first record since a time; None: there is no topic, or no record since then."""
        since = TopicPartition(HEARTBEATS_TOPIC, 0, from_ms)

        def ask(led_s: float) -> TopicPartition:
            # `led_s`: how long a new client may not know the topic
            found: list[TopicPartition] = once_led(
                lambda: client.offsets_for_times([since], timeout=_left_s(deadline)), led_s
            )
            return found[0]

        try:
            start = ask(LED_S)
        except KafkaException as unled:
            if unled.args[0].code() not in (*NO_TOPIC, *MOVED):
                raise
            # the topic was deleted. No driver is heard until one creates it again; `status` says so
            if unled.args[0].code() in NO_TOPIC and partition_count(self._settings, HEARTBEATS_TOPIC) is None:
                return None
            start = ask(self._settings.request_timeout_s)
        return None if start.error is not None or start.offset < 0 else start.offset

    def _read(self, client: Consumer, offset: int, deadline: float) -> None:
        """Reads from an offset up to now. Raises Unavailable if the records don't arrive in time."""
        client.assign([TopicPartition(HEARTBEATS_TOPIC, 0, offset)])
        while time.monotonic() < deadline:
            for message in drain(client, 0.2):
                error = message.error()
                if error is None:
                    self._take(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._next = message.offset()
                    return
        raise unavailable(self._settings, None)

    def _take(self, message: Message) -> None:
        self._next = (message.offset() or 0) + 1
        stamp, at_ms = message.timestamp()
        # Kafka finds the first record with a time or a later one; all records after that count, even older ones
        self._last_ms = max(self._last_ms, at_ms)
        value = message.value()
        if value is None:
            sign = read_sign(message.key())
            if sign is not None:
                self._signs[sign] = at_ms
            return
        beat = _parsed(value)
        if beat is None:
            self._unread_ms.append(self._last_ms)
            return
        if stamp == TIMESTAMP_LOG_APPEND_TIME:
            beat = beat.model_copy(update={"at_ms": at_ms})
        # a driver that was taken over may send one more heartbeat when it wakes up, so tokens are kept apart
        self._newest[beat.release, beat.token] = self._last_ms, beat

    def _forget_before(self, at_ms: int) -> None:
        self._since_ms = max(self._since_ms, at_ms)
        self._newest = {key: each for key, each in self._newest.items() if each[0] >= at_ms}
        self._signs = {sign: each_ms for sign, each_ms in self._signs.items() if each_ms >= at_ms}


def _left_s(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


class HeartbeatTail:
    """Heartbeats as they arrive, from some seconds ago on."""

    def __init__(self, settings: Settings) -> None:
        self._reader = LogReader(settings, HEARTBEATS_TOPIC, start=None, back=_LOOK_BACK)

    def poll(self, timeout_s: float) -> list[Heartbeat]:
        """Waits up to `timeout_s` for the next ones."""
        return [beat for beat in map(_parsed, self._reader.poll(timeout_s)) if beat is not None]

    def close(self) -> None:
        self._reader.close()


def _parsed(value: bytes) -> Heartbeat | None:
    try:
        return read_heartbeat(value)
    except ValueError as error:
        log.warning("a record of %s can't be read as a heartbeat: %s", HEARTBEATS_TOPIC, error)
        return None
