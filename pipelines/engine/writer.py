"""The transactional producer of a release: one writer, one batch, one transaction."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from pipelines.errors import SwitchyardError
from pipelines.kafka.client import TRANSACTION_TIMEOUT_MS, admin, await_connection, consumer, producer
from pipelines.kafka.log import read_tail
from pipelines.kafka.offsets import end_of
from pipelines.model.names import progress_topic
from pipelines.model.progress import Progress
from pipelines.settings import Settings

# keys of the progress topic run round this ring, so that compaction keeps that many boundaries and the last for ever
_RING = 100_000
# how often produce() may find the queue full before flushing
_POLL_EVERY = 5_000

Headers = list[tuple[str, str | bytes | None]]
Record = tuple[str | None, str | None, Headers | None]


class Superseded(SwitchyardError):
    """Another driver has this release's transactional id: this one may not write any more."""


class OutcomeUnknown(SwitchyardError):
    """Whether the transaction committed isn't known; progress knows."""

    retryable = True


class Writer:
    """Writes batches of one release's generation.

    Each method that talks to Kafka raises Superseded if another driver took over, OutcomeUnknown where a commit was
    asked for and not answered, KafkaException for the rest (nothing of the batch is committed then).
    """

    def __init__(self, settings: Settings, release: str, result_topic: str, partitions: int) -> None:
        self._settings = settings
        self._release = release
        self._result_topic = result_topic
        self._partitions = partitions
        self._admin = admin(settings)
        self._producer: Producer | None = None
        # only for its group metadata, without a member: the offsets go with the transaction
        self._group: Consumer = consumer(settings, group_id=release)

    def connect(self) -> Progress | None:
        """Fences every older writer, then reads the last committed progress record; None if there is none.

        In this order: a record of a transaction that is still open, or aborted, must not count.
        """
        self._producer = producer(
            self._settings,
            transactional_id=self._release,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            # the broker's answer decides, not a clock of the client's
            message_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        await_connection(self._producer, progress_topic(self._release))
        self._guard(self._producer.init_transactions, self._settings.request_timeout_s * 3)
        values = read_tail(self._settings, progress_topic(self._release))
        return Progress.model_validate_json(values[-1]) if values else None

    def drop(self) -> None:
        """Gives the producer up: the next `connect` makes another one."""
        self._producer = None

    def close(self) -> None:
        self.drop()
        self._group.close()

    @property
    def connected(self) -> bool:
        return self._producer is not None

    def begin(self) -> None:
        """Begins the batch's transaction."""
        self._guard(self._live().begin_transaction)

    def send(self, topic: str, records: Iterable[Record]) -> list[tuple[Record, str]]:
        """Queues (key, value, headers) records, in order; waits where the queue is full.

        Returns the records that can't be written, each with the reason: too large for the producer.
        """
        produce = self._live().produce
        refused: list[tuple[Record, str]] = []
        for number, (key, value, headers) in enumerate(records):
            while True:
                try:
                    produce(topic, value, key, headers=headers)
                    break
                except BufferError:
                    self._live().poll(0.1)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                        self._fenced(error)
                        raise
                    refused.append(((key, value, headers), error.args[0].str()))
                    break
            if number % _POLL_EVERY == 0:
                self._live().poll(0)
        return refused

    def send_dead(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, str | bytes | None]]
    ) -> None:
        """Queues one dead letter, bytes as they came; waits where the queue is full.

        Where it is too large with its headers, it goes without its value, and if need be without its key; a header
        says how many bytes that had. A letter that could not be written would fail the batch each time.
        """
        said: Headers = [*headers]
        while True:
            try:
                self._live().produce(topic, value, key, headers=said)
                return
            except BufferError:
                self._live().poll(0.1)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    self._fenced(error)
                    raise
                if value is not None:
                    said, value = [*said, ("value-bytes", str(len(value)).encode())], None
                elif key is not None:
                    said, key = [*said, ("key-bytes", str(len(key)).encode())], None
                else:
                    raise

    def acknowledged(self) -> dict[int, int]:
        """Waits until the broker has every record; returns the result's next offset per partition."""
        left = self._guard(self._live().flush, self._settings.request_timeout_s * 6)
        if left:
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, f"{left} records of {self._release} not acknowledged")
            )
        # this release alone writes the topic: the high watermark is behind its last record
        return end_of(self._settings, self._result_topic, self._partitions, committed=False, client=self._admin)

    def commit(self, progress: Progress | None, offsets: Mapping[str, Mapping[int, int]] | None) -> None:
        """Progress record, the group's offsets (topic -> partition -> offset), commit. None: only what was sent."""
        live = self._live()
        if progress is not None:
            record = progress.model_dump_json(exclude_none=True), str(progress.boundary.batch_id % _RING)
            self._guard(lambda: live.produce(progress_topic(self._release), *record, partition=0))
        if progress is not None and offsets:
            note = f"{progress.generation}:{progress.boundary.batch_id}"
            wanted = [TopicPartition(t, p, o, note) for t, ps in offsets.items() for p, o in ps.items()]
            group = self._group.consumer_group_metadata()
            self._guard(self._bounded, live.send_offsets_to_transaction, wanted, group)
        try:
            self._bounded(live.commit_transaction)
        except KafkaException as error:
            reason = error.args[0]
            self._fenced(error)
            if reason.txn_requires_abort():
                self.abort()
                raise
            self._producer = None
            raise OutcomeUnknown(f"the commit of {self._release} wasn't answered: {reason.str()}") from error

    def abort(self) -> None:
        """Takes back what the batch has written; if that fails, drops the producer: the next `connect` fences it."""
        if self._producer is None:
            return
        try:
            self._producer.purge()
            self._producer.abort_transaction(self._settings.request_timeout_s)
        except KafkaException:
            self._producer = None

    def _live(self) -> Producer:
        if self._producer is None:
            raise OutcomeUnknown(f"the producer of {self._release} isn't connected")
        return self._producer

    def _bounded(self, call: Callable[..., Any], *arguments: object) -> None:
        """Calls it with a time-out as its last argument, and keeps it to that.

        librdkafka may not: after a broker's restart it has been seen to ask for a group's coordinator for ever. Then this
        producer is given up with its thread; the next one fences it.
        """
        timeout_s = self._settings.request_timeout_s * 2
        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def run() -> None:
            try:
                call(*arguments, timeout_s)
                ended.put(None)
            except BaseException as error:
                ended.put(error)

        threading.Thread(target=run, name="kafka-call", daemon=True).start()
        try:
            error = ended.get(timeout=timeout_s * 1.5)
        except queue.Empty:
            self._producer = None
            raise OutcomeUnknown(f"a call of the producer of {self._release} did not come back") from None
        if error is not None:
            raise error

    def _guard(self, call: Callable[..., Any], *arguments: object) -> Any:
        """What `call` returns; Superseded where it says that this producer is fenced, which any call may."""
        try:
            return call(*arguments)
        except KafkaException as error:
            self._fenced(error)
            raise

    def _fenced(self, error: KafkaException) -> None:
        codes = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
        if error.args[0].code() in codes:
            self._producer = None
            raise Superseded(
                f"another driver has taken over {self._release}", fix="see `switchyard status` for who runs it"
            ) from error
