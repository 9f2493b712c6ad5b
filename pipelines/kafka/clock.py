"""The broker's clock. Hosts' own clocks differ, so whatever two of them must agree on is told by this one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from pipelines.kafka.client import UNLED, await_connection, producer
from pipelines.kafka.failures import failure, forbidden
from pipelines.kafka.log import NO_TOPIC
from pipelines.model.names import HEARTBEATS_TOPIC
from pipelines.settings import Settings

log = logging.getLogger(__name__)

# how long an answer is used: soon after the broker's clock was set, or another broker leads the topic, its time counts
_USED_S = 5.0
# the record that asks for the time. It has no value, so whoever reads heartbeats passes over it
_ASKS = b'"time"'


def now_ms() -> int:
    """Milliseconds since the epoch, by this machine's clock. Never compare it with a time that another host has written."""
    return time.time_ns() // 1_000_000


def elapsed_s() -> float:
    """Seconds since this machine was started, including those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class BrokerClock:
    """Tells the time of the broker that stamps heartbeats. It is never ahead of that broker's clock.

    To ask, it appends a record to the topic of heartbeats, and takes the time that the broker gives it. An answer is used
    for 5 s. Where the broker tells none, it is this machine's own time: there is no such topic yet, a build before 0.1.0
    created it, or this login may not write to it, and so may carry out no operation either.

    `append`: appends a record with a key and no value; returns its time in ms, None if that is not the broker's; raises
    KafkaException. `elapsed`: seconds from any start. `own`: this machine's time in ms.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        append: Callable[[bytes], int | None] | None = None,
        elapsed: Callable[[], float] = elapsed_s,
        own: Callable[[], int] | None = None,
    ) -> None:
        self._settings = settings
        self._append = append or self._produce
        self._elapsed = elapsed
        self._own = own
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        # when it was asked last; when the broker answered last, and its time then
        self._asked_s: float | None = None
        self._answered_s: float | None = None
        self._answer_ms: int | None = None
        self._told = False

    def now_ms(self) -> int:
        """Milliseconds since the epoch. Raises Unavailable if the broker has never answered and doesn't now."""
        with self._lock:
            if self._asked_s is None or self._elapsed() - self._asked_s >= _USED_S:
                self._ask()
                # without an answer, too: each question may take as long as a request may
                self._asked_s = self._elapsed()
            if self._answer_ms is None or self._answered_s is None:
                return (self._own or now_ms)()
            return self._answer_ms + int((self._elapsed() - self._answered_s) * 1000)

    @property
    def is_brokers(self) -> bool:
        """Whether what was told last is the broker's time."""
        return self._answer_ms is not None

    def say(self, key: bytes) -> None:
        """Appends a record without a value, whose time also answers what time it is. Raises Refused without the right,
        Unavailable without an answer.
        """
        with self._lock:
            try:
                self._take(self._append(key))
                self._asked_s = self._answered_s
            except KafkaException as error:
                raise failure(self._settings, error.args[0], topic=HEARTBEATS_TOPIC) from error

    def close(self) -> None:
        """Closes the connection; a later question opens another."""
        with self._lock:
            self._producer = None

    def _ask(self) -> None:
        try:
            self._take(self._append(_ASKS))
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            if forbidden(reason):
                # as of a consumer, which compares no times
                self._tell(logging.INFO, f"this login may not write to {HEARTBEATS_TOPIC} ({reason.str()})")
            elif reason.code() not in NO_TOPIC and self._answer_ms is None:
                raise failure(self._settings, reason, topic=HEARTBEATS_TOPIC) from error
            elif self._answer_ms is not None:
                # an older answer is still not ahead of the broker
                log.info("the broker does not tell its time for now: %s", reason.str())

    def _take(self, answer_ms: int | None) -> None:
        # looked at after the broker has: so what is told is never ahead of it
        self._answered_s, self._answer_ms = self._elapsed(), answer_ms

    def _produce(self, key: bytes) -> int | None:
        timeout_s, told = self._settings.request_timeout_s, list[tuple[KafkaError | None, int, int]]()
        # after trouble with the connection, the next question opens another
        client, self._producer = self._producer, None
        if client is None:
            # not idempotent: that takes longer to begin, and a second record does no harm
            client = producer(
                self._settings, linger_ms=0, enable_idempotence=False, message_timeout_ms=int(timeout_s * 1000)
            )
            await_connection(client, HEARTBEATS_TOPIC)
        # a record for a topic that doesn't exist would wait for it
        found = client.list_topics(HEARTBEATS_TOPIC, timeout=timeout_s).topics[HEARTBEATS_TOPIC].error
        self._producer = client
        if found is not None and found.code() not in UNLED:
            raise KafkaException(found)

        def delivered(error: KafkaError | None, message: Message) -> None:
            told.append((error, *message.timestamp()))

        client.produce(HEARTBEATS_TOPIC, key=key, partition=0, on_delivery=delivered)
        client.flush(timeout_s)
        error, stamp, at_ms = told[0] if told else (KafkaError(KafkaError._TIMED_OUT), 0, 0)
        if error is not None:
            self._producer = client if forbidden(error) else None
            raise KafkaException(error)
        if stamp != TIMESTAMP_LOG_APPEND_TIME:
            self._tell(logging.WARNING, f"the records of {HEARTBEATS_TOPIC} don't carry the broker's time")
            return None
        return at_ms

    def _tell(self, level: int, why: str) -> None:
        if not self._told:
            log.log(level, "the broker does not tell its time, so this machine's clock counts: %s", why)
        self._told = True
