"""The transactional producer of an operation: confluent_kafka's. An operation has no JVM, and writes few records."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Producer

from pipelines.engine.writer import Headers
from pipelines.kafka.client import await_connection, producer
from pipelines.model.names import progress_topic
from pipelines.settings import Settings

# librdkafka usually keeps to its own time-out
_GRACE_S = 1.0


class LibrdkafkaProducer:
    """A producer of confluent_kafka, as `Transactional` in `writer.py` says."""

    def __init__(self, settings: Settings, release: str) -> None:
        timeout_ms = int(settings.transaction_timeout_s * 1000)
        self._client: Producer = producer(
            settings,
            transactional_id=release,
            transaction_timeout_ms=timeout_ms,
            # the broker decides, not the client's clock
            message_timeout_ms=timeout_ms,
        )
        await_connection(self._client, progress_topic(release))

    def __len__(self) -> int:
        return len(self._client)

    def init_transactions(self, timeout_s: float) -> None:
        _bounded(self._client.init_transactions, timeout_s)

    def begin_transaction(self) -> None:
        self._client.begin_transaction()

    def produce(
        self, topic: str, value: str | bytes | None, key: str | bytes | None, headers: Headers | None = None, partition: int = -1
    ) -> None:  # fmt: skip
        """Queues a record. Raises BufferError if the queue is full."""
        self._client.produce(topic, value, key, partition=partition, headers=headers)

    def poll(self, timeout_s: float) -> None:
        self._client.poll(timeout_s)

    def flush(self, timeout_s: float) -> int:
        return self._client.flush(timeout_s)

    def commit_transaction(self, timeout_s: float) -> None:
        _bounded(self._client.commit_transaction, timeout_s)

    def abort_transaction(self, timeout_s: float) -> None:
        self._client.purge()
        _bounded(self._client.abort_transaction, timeout_s)

    def close(self) -> None:
        """Nothing to do: the client ends with its last reference."""


def _bounded(call: Callable[[float], object], timeout_s: float) -> None:
    """Calls `call` with its time-out, and enforces it: raises KafkaException, and leaves the call and its thread behind.

    librdkafka may ignore a time-out: after a broker's restart it was seen to ask for a group's coordinator forever.
    """
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            call(timeout_s)
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    threading.Thread(target=run, name="kafka-call", daemon=True).start()
    try:
        error = ended.get(timeout=timeout_s + _GRACE_S)
    except queue.Empty:
        reason = KafkaError(KafkaError._TIMED_OUT, f"the client did not return within {timeout_s:g} s")
        raise KafkaException(reason) from None
    if error is not None:
        raise error
