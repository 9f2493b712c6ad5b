"""The transactional producer of a release: one writer, one batch, one transaction."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from pipelines.errors import BadUsage, SwitchyardError
from pipelines.kafka.client import admin, await_connection, consumer, producer
from pipelines.kafka.offsets import ends_of
from pipelines.kafka.progress import newest_progress
from pipelines.model.names import progress_topic
from pipelines.model.positions import ResultPosition
from pipelines.model.progress import Progress
from pipelines.settings import Settings

# the keys of the progress topic cycle through this many numbers, so compaction keeps that many boundaries
_RING = 100_000
# how many records are queued between two polls
_POLL_EVERY = 5_000
# a batch must be written within this share of the transaction's time; offsets and commit get the rest
_WRITE_SHARE = 0.75
# the first time-out of a transaction's call, which usually takes milliseconds. After a broker's restart librdkafka may
# never get an answer, but the next producer does. It doubles with each call that is given up, for slow clusters
_FIRST_WAIT_S = 3.0
# librdkafka usually keeps to its own time-out
_GRACE_S = 1.0
_FLUSH_S = 0.25

Headers = list[tuple[str, str | bytes | None]]
Record = tuple[str | None, str | None, Headers | None]


class Superseded(SwitchyardError):
    """Another driver has this release's transactional id; this one can no longer write."""


class OutcomeUnknown(SwitchyardError):
    """It is unknown whether the transaction was committed. The progress topic tells."""

    retryable = True


class TransactionEnded(OutcomeUnknown):
    """The broker has ended the transaction because it took too long. The batch is written again in the next one."""


class Writer:
    """Writes batches of one release's generation. `results`: topic of each of its results -> number of partitions.

    Each method that talks to Kafka raises Superseded if another driver took over or the broker has ended the transaction
    (the registry tells which), OutcomeUnknown if a commit was not answered, and KafkaException for all other errors; then
    nothing of the batch is committed. No method waits longer than its time-out, whatever librdkafka does.
    """

    def __init__(
        self,
        settings: Settings,
        release: str,
        results: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._deadline = 0.0
        self._wait_s = min(_FIRST_WAIT_S, settings.request_timeout_s)
        self._settings = settings
        self._release = release
        self._results = dict(results)
        self._admin = admin(settings)
        self._producer: Producer | None = None
        self._contact = _Contact()
        # only for its group metadata, not a member of the group: the transaction commits the offsets
        self._group: Consumer = consumer(settings, group_id=release)

    def connect(self) -> Progress | None:
        """Fences every older writer, then reads the last committed progress record; None if there is none.

        In this order, because a record of a transaction that is still open must not count. Raises BadUsage if the broker
        does not allow transactions as long as the settings ask for.
        """
        timeout_ms = int(self._settings.transaction_timeout_s * 1000)
        self.drop()
        contact = _Contact()
        live = producer(
            self._settings,
            on_error=contact,
            transactional_id=self._release,
            transaction_timeout_ms=timeout_ms,
            # the broker decides, not the client's clock
            message_timeout_ms=timeout_ms,
        )
        await_connection(live, progress_topic(self._release))
        try:
            # the broker may have to end the transaction of the previous writer
            self._bounded(live.init_transactions, timeout_s=self._settings.request_timeout_s * 3)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise BadUsage(
                    f"the broker does not allow transactions of {self._settings.transaction_timeout_s:g} s, which {self._release} needs",
                    fix="set SWITCHYARD_TRANSACTION_TIMEOUT_S to less than the broker's transaction.max.timeout.ms, or raise that",
                ) from error
            self._fenced(error)
            raise
        last = newest_progress(self._settings, self._release)
        # only now: without the newest progress, the producer would write a committed batch again
        self._producer, self._contact = live, contact
        return last

    def drop(self) -> None:
        """Drops the producer. The next `connect` makes another one."""
        self._producer = None

    def give_up(self) -> None:
        """Drops what was sent and not acknowledged, so that nothing waits for it. Can be called from any thread."""
        live = self._producer
        if live is not None:
            live.purge()

    def close(self) -> None:
        self.drop()
        self._group.close()

    @property
    def connected(self) -> bool:
        """Whether there is a producer that has never been without a broker.

        Drops one that was, even for a moment: it may get no answer from its coordinator until the time-out.
        """
        if self._producer is not None:
            # runs librdkafka's callbacks
            self._producer.poll(0)
            if self._contact.lost:
                self.drop()
        return self._producer is not None

    def begin(self) -> None:
        """Begins the batch's transaction. All records must be acknowledged within three quarters of its time."""
        self._deadline = self._clock() + _WRITE_SHARE * self._settings.transaction_timeout_s
        self._guard(self._live().begin_transaction)

    def send(self, topic: str, records: Iterable[Record]) -> list[tuple[Record, str]]:
        """Queues (key, value, headers) records in order. If the queue is full, waits as long as the batch may take.

        Returns the records that are too large for the producer, each with the reason.
        """
        produce = self._live().produce
        refused: list[tuple[Record, str]] = []
        for number, (key, value, headers) in enumerate(records):
            while True:
                try:
                    produce(topic, value, key, headers=headers)
                    break
                except BufferError:
                    self._await_room()
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                        self._fenced(error)
                        raise
                    refused.append(((key, value, headers), error.args[0].str()))
                    break
            if number % _POLL_EVERY == 0:
                self._live().poll(0)
                self._must_be_in_time("not all records are written")
        return refused

    def send_dead(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, str | bytes | None]]
    ) -> None:
        """Queues one dead letter with its original bytes. Waits if the queue is full.

        If it is too large with its headers, it is sent without its value and, if necessary, without its key. A header then
        gives their size in bytes. A dead letter that can't be written would make the batch fail each time.
        """
        said: Headers = [*headers]
        while True:
            try:
                self._live().produce(topic, value, key, headers=said)
                return
            except BufferError:
                self._await_room()
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

    def acknowledged(self) -> ResultPosition:
        """Waits until the broker has every record. Returns where the results then end."""
        live, since = self._live(), self._clock()
        left = len(live)
        while left:
            before, left = left, self._guard(live.flush, _FLUSH_S)
            now = self._clock()
            since = now if left < before else since
            if left:
                self._must_be_in_time(f"{left:,} records are not acknowledged")
                silent_s = self._settings.request_timeout_s
                if now - since > silent_s:
                    raise _timed_out(
                        f"none of {left:,} records of {self._release} was acknowledged for {silent_s:g} s "
                        "(SWITCHYARD_REQUEST_TIMEOUT_S)"
                    )
        # only this release writes to the topics, so the high watermark comes right after its last record
        return ResultPosition(topics=ends_of(self._settings, self._results, committed=False, client=self._admin))

    def commit(self, progress: Progress | None, offsets: Mapping[str, Mapping[int, int]] | None) -> None:
        """Sends the progress record and the group's offsets (topic -> partition -> offset), then commits.

        None: commits only what was sent before.
        """
        live = self._live()
        if progress is not None:
            record = progress.model_dump_json(exclude_none=True), str(progress.boundary.batch_id % _RING)
            self._guard(lambda: live.produce(progress_topic(self._release), *record, partition=0))
        if progress is not None and offsets:
            note = f"{progress.generation}:{progress.boundary.batch_id}"
            wanted = [TopicPartition(t, p, o, note) for t, ps in offsets.items() for p, o in ps.items()]
            group = self._group.consumer_group_metadata()
            self._guard(self._bounded, live.send_offsets_to_transaction, wanted, group)
        began = self._clock()
        try:
            self._bounded(live.commit_transaction)
        except KafkaException as error:
            reason = error.args[0]
            self._fenced(error)
            if reason.txn_requires_abort():
                self.abort()
                raise
            self._producer = None
            raise OutcomeUnknown(f"the commit of {self._release} was not answered: {reason.str()}") from error
        # so that calls to a slow cluster are not given up in each batch
        self._wait_s = max(min(_FIRST_WAIT_S, self._settings.request_timeout_s), 2 * (self._clock() - began))

    def abort(self) -> None:
        """Aborts the batch's transaction. If that fails, drops the producer, and the next `connect` fences it."""
        if self._producer is None:
            return
        try:
            self._producer.purge()
            self._bounded(self._producer.abort_transaction)
        except (KafkaException, OutcomeUnknown):
            self._producer = None

    def _live(self) -> Producer:
        if self._producer is None:
            raise OutcomeUnknown(f"the producer of {self._release} is not connected")
        return self._producer

    def _await_room(self) -> None:
        """Waits a moment for room in the full queue. Raises KafkaException if the batch has no time left."""
        self._live().poll(0.1)
        self._must_be_in_time("the producer's queue is full")

    def _must_be_in_time(self, what: str) -> None:
        """Raises KafkaException with `what` if the batch has no time left: the broker would end its transaction."""
        if self._clock() > self._deadline:
            raise _timed_out(
                f"{what} within {_WRITE_SHARE:.0%} of the time of a transaction of {self._release} "
                f"(SWITCHYARD_TRANSACTION_TIMEOUT_S, {self._settings.transaction_timeout_s:g} s)"
            )

    def _bounded(self, call: Callable[..., Any], *arguments: object, timeout_s: float | None = None) -> None:
        """Calls `call` with a time-out as its last argument, and enforces that time-out. The default is `_wait_s`.

        librdkafka may ignore it: after a broker's restart it was seen to ask for a group's coordinator forever. Then the
        producer is dropped together with its thread, and the next one fences it.
        """
        wait_s = timeout_s or self._wait_s
        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def run() -> None:
            try:
                call(*arguments, wait_s)
                ended.put(None)
            except BaseException as error:
                ended.put(error)

        threading.Thread(target=run, name="kafka-call", daemon=True).start()
        try:
            error = ended.get(timeout=wait_s + _GRACE_S)
        except queue.Empty:
            self._producer = None
            self._be_patient()
            raise OutcomeUnknown(
                f"a call of the producer of {self._release} did not return within {wait_s:g} s"
            ) from None
        if error is not None:
            if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._TIMED_OUT:
                self._be_patient()
            raise error

    def _be_patient(self) -> None:
        """Makes the next call wait twice as long."""
        self._wait_s = min(2 * self._wait_s, 3 * self._settings.request_timeout_s)

    def _guard(self, call: Callable[..., Any], *arguments: object) -> Any:
        """What `call` returns. Raises Superseded if this producer is fenced, which any call may report."""
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
                f"another driver has taken over {self._release}", fix="`switchyard status` shows who runs it"
            ) from error


class _Contact:
    """Remembers that a producer was without any broker for a moment. librdkafka calls it."""

    def __init__(self) -> None:
        self.lost = False

    def __call__(self, error: KafkaError) -> None:
        self.lost = self.lost or error.code() == KafkaError._ALL_BROKERS_DOWN


def _timed_out(why: str) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, why))
