"""The transactional writer of a release: whoever connects last is its only writer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from pipelines.errors import BadUsage, SwitchyardError, Unavailable
from pipelines.kafka.client import admin
from pipelines.kafka.offsets import ends_of
from pipelines.kafka.progress import newest_progress
from pipelines.model.positions import ResultPosition
from pipelines.model.progress import Progress
from pipelines.settings import Settings

# how many records are queued between two polls
_POLL_EVERY = 5_000
# what is written must be acknowledged within this share of the transaction's time; offsets and commit get the rest
WRITE_SHARE = 0.75
_FLUSH_S = 0.25

Headers = list[tuple[str, str | bytes | None]]
# key, value and headers
Record = tuple[str | bytes | None, str | bytes | None, Headers | None]


class Superseded(SwitchyardError):
    """Another driver has this release's transactional id; this one can no longer write."""


class OutcomeUnknown(Unavailable):
    """It is unknown whether the transaction was committed. The progress topic tells."""


class TransactionEnded(OutcomeUnknown):
    """The broker has ended the transaction because it took too long. The batch is written again in the next one."""


class Transactional(Protocol):
    """What a writer needs of a transactional producer: that of an operation (`librdkafka.py`) or of a driver
    (`jvm_producer.py`). Its methods raise KafkaException with confluent_kafka's codes, and keep to their time-outs.
    """

    def __len__(self) -> int:
        """How many records are not acknowledged."""
        ...

    def init_transactions(self, timeout_s: float, /) -> None: ...
    def begin_transaction(self) -> None: ...
    def produce(
        self, topic: str, value: str | bytes | None, key: str | bytes | None, headers: Headers | None = ..., partition: int = ...
    ) -> None: ...  # fmt: skip
    def poll(self, timeout_s: float, /) -> None: ...
    def flush(self, timeout_s: float, /) -> int: ...
    def commit_transaction(self, timeout_s: float, /) -> None: ...
    def abort_transaction(self, timeout_s: float, /) -> None: ...
    def close(self) -> None: ...


Made = TypeVar("Made", bound=Transactional)


class Writer(Generic[Made]):
    """Writes for one release's generation. `results`: topic of each of its results -> number of partitions. `make`: makes a
    producer of a release.

    Each method that talks to Kafka raises Superseded if another driver took over or the broker has ended the transaction
    (the registry tells which), OutcomeUnknown if a commit was not answered, and KafkaException for all other errors; then
    nothing of the transaction is committed.
    """

    def __init__(
        self,
        settings: Settings,
        release: str,
        results: Mapping[str, int],
        make: Callable[[Settings, str], Made],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._deadline = 0.0
        self._settings = settings
        self._release = release
        self._results = dict(results)
        self._make = make
        self._admin = admin(settings)
        self._producer: Made | None = None

    def connect(self) -> Progress | None:
        """Fences every older writer, then reads the last committed progress record; None if there is none.

        In this order, because a record of a transaction that is still open must not count. Raises BadUsage if the broker
        does not allow transactions as long as the settings ask for.
        """
        self.drop()
        live = self._make(self._settings, self._release)
        try:
            self._init(live)
            last = newest_progress(self._settings, self._release)
        except BaseException:
            live.close()
            raise
        # only now: without the newest progress, the producer would write a committed batch again
        self._producer = live
        return last

    def _init(self, live: Made) -> None:
        try:
            # the broker may have to end the transaction of the previous writer
            live.init_transactions(self._settings.request_timeout_s * 3)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise BadUsage(
                    f"the broker does not allow transactions of {self._settings.transaction_timeout_s:g} s, which {self._release} needs",
                    fix="set SWITCHYARD_TRANSACTION_TIMEOUT_S to less than the broker's transaction.max.timeout.ms, or raise that",
                ) from error
            self._fenced(error)
            raise

    def drop(self) -> None:
        """Drops the producer. The next `connect` makes another one."""
        live, self._producer = self._producer, None
        if live is not None:
            live.close()

    def close(self) -> None:
        self.drop()

    @property
    def connected(self) -> bool:
        return self._producer is not None

    def begin(self) -> None:
        """Begins a transaction. All records must be acknowledged within three quarters of its time."""
        self._deadline = self._clock() + WRITE_SHARE * self._settings.transaction_timeout_s
        self._guard(self._live().begin_transaction)

    def send(self, topic: str, records: Iterable[Record]) -> None:
        """Queues records in order. If the queue is full, waits as long as a batch may take."""
        live = self._live()
        for number, (key, value, headers) in enumerate(records):
            while True:
                try:
                    self._guard(live.produce, topic, value, key, headers)
                    break
                except BufferError:
                    live.poll(0.1)
                    self._must_be_in_time("the producer's queue is full")
            if number % _POLL_EVERY == 0:
                live.poll(0)
                self._must_be_in_time("not all records are written")

    def acknowledged(self) -> ResultPosition:
        """Waits until the broker has every record. Returns where the results then end."""
        live, since = self._live(), self._clock()
        before = len(live)
        # also if none is left: one may have failed
        while left := self._guard(live.flush, _FLUSH_S):
            now = self._clock()
            since, before = now if left < before else since, left
            self._must_be_in_time(f"{left:,} records are not acknowledged")
            silent_s = self._settings.request_timeout_s
            if now - since > silent_s:
                raise _timed_out(
                    f"none of {left:,} records of {self._release} was acknowledged for {silent_s:g} s "
                    "(SWITCHYARD_REQUEST_TIMEOUT_S)"
                )
        # only this release writes to the topics, so the high watermark comes right after its last record
        return ResultPosition(topics=ends_of(self._settings, self._results, committed=False, client=self._admin))

    def commit(self) -> None:
        """Commits what was sent since `begin`."""
        try:
            self._live().commit_transaction(self._settings.request_timeout_s)
        except KafkaException as error:
            reason = error.args[0]
            self._fenced(error)
            if reason.txn_requires_abort():
                self.abort()
                raise
            self.drop()
            raise OutcomeUnknown(f"the commit of {self._release} was not answered: {reason.str()}") from error

    def abort(self) -> None:
        """Aborts the transaction. If that fails, drops the producer, and the next `connect` fences it."""
        if self._producer is None:
            return
        try:
            self._producer.abort_transaction(self._settings.request_timeout_s)
        except KafkaException:
            self.drop()

    def _live(self) -> Made:
        if self._producer is None:
            raise OutcomeUnknown(f"the producer of {self._release} is not connected")
        return self._producer

    def _left_s(self) -> float:
        """How many seconds the batch has left for its records."""
        return self._deadline - self._clock()

    def _must_be_in_time(self, what: str) -> None:
        """Raises KafkaException with `what` if the batch has no time left: the broker would end its transaction."""
        if self._left_s() < 0:
            raise self._too_late(what)

    def _too_late(self, what: str) -> KafkaException:
        return _timed_out(
            f"{what} within {WRITE_SHARE:.0%} of the time of a transaction of {self._release} "
            f"(SWITCHYARD_TRANSACTION_TIMEOUT_S, {self._settings.transaction_timeout_s:g} s)"
        )

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
            self.drop()
            raise Superseded(
                f"another driver has taken over {self._release}", fix="`switchyard status` shows who runs it"
            ) from error


def _timed_out(why: str) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, why))
