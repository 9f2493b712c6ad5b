"""The sink: commits a batch's result, its progress record and the group's offsets in one transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException
from pyspark.sql import DataFrame

from pipelines.engine.checkpoint import Checkpoint, PlannedBatch
from pipelines.engine.metrics import BatchMetrics, DeadLetter
from pipelines.engine.turnstile import Turnstile
from pipelines.engine.writer import Headers, OutcomeUnknown, Record, Superseded, TransactionEnded, Writer
from pipelines.errors import SwitchyardError
from pipelines.model.app import Oversized
from pipelines.model.entries import MarkOrdered
from pipelines.model.names import REPLAY, SOURCE, dead_letter_topic
from pipelines.model.positions import ResultPosition, SourcePosition, Span
from pipelines.model.progress import MARKS, Boundary, Counts, Flagging, Mark, Progress
from pipelines.model.reset import Replays
from pipelines.model.switch import flags, foreseen

_REPLAYED = (REPLAY, b"true")
# letters of a key in an error
_SHOWN = 200


class RowTooLarge(SwitchyardError):
    """A row of a result is larger than a record of Kafka may be. A table would silently keep its earlier row."""


class ProgressGap(SwitchyardError):
    """Spark asks for a batch that doesn't follow the last committed one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """What the sink writes for: one generation of a release.

    `results`: result name -> topic; the only result has an empty name. `inputs`: source name -> topic. `processed`:
    input whose results consumers may already have; its results are marked as a replay. `seed`: the generation's first
    progress record, if it continues an earlier one. `oversized`: what becomes of a row that is too large for a record.
    """

    release: str
    generation: int
    token: int
    results: dict[str, str]
    inputs: dict[str, str]
    start: SourcePosition
    watermarked: bool
    processed: tuple[Span, ...] = ()
    seed: Progress | None = None
    oversized: Oversized = "stop"


class Sink:
    """Spark's foreachBatch function, and the driver's control of it. Its turnstile decides which batches run, and when.

    `serialize` turns the batch's rows into records, as `results.serialized` does. `metrics` asks Spark about the batch that just ran.
    `admit` raises if a newer driver has the release. `after_batch` is called at the end of a batch while Spark waits, unless
    the number of batches is limited.
    """

    def __init__(
        self,
        destination: Destination,
        writer: Writer,
        checkpoint: Checkpoint,
        *,
        serialize: Callable[[DataFrame], DataFrame],
        metrics: Callable[[], BatchMetrics],
        admit: Callable[[], None] = lambda: None,
        after_batch: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.destination = destination
        self._writer = writer
        self._checkpoint = checkpoint
        self._serialize = serialize
        self._metrics = metrics
        self._admit = admit
        self._after_batch = after_batch
        self._clock = clock
        self._lock = threading.RLock()
        self.turnstile = Turnstile(destination.release, checkpoint, self._lock, last=lambda: self.last, clock=clock)
        self._order: MarkOrdered | None = None
        self._replays = Replays(destination.processed, destination.inputs)
        self.last: Progress | None = None
        self.in_batch: int | None = None
        self.finished_at = clock()
        # how long the last batch took, without the wait at its end
        self.batch_s = 0.0
        # records per second of the fastest committed batch
        self.best_records_per_s = 0.0
        self.failure: tuple[int, BaseException] | None = None
        self._halted: SwitchyardError | None = None

    # -- for the driver

    def halt(self, why: SwitchyardError) -> None:
        """Commits nothing from here on: each attempt raises `why`. Can be called from any thread at any time."""
        self._halted = why
        self.turnstile.hurry()
        self._writer.give_up()

    @property
    def halted(self) -> bool:
        """Whether `halt` was called."""
        return self._halted is not None

    def connect(self) -> None:
        """Fences older writers and reads how far the release is. Raises as `Writer.connect` and `admit` do."""
        with self._lock:
            # connecting fences all others: a driver that was frozen, or had an outage, must ask before it does
            self._admit()
            try:
                last = self._writer.connect()
                # again: a driver that froze in between may have fenced a newer one, and must not take its place
                self._admit()
                if last is not None and last.token > self.destination.token:
                    raise SwitchyardError(
                        f"{self.destination.release} has progress of a newer token, {last.token}",
                        fix=f"another driver has run it since: see `switchyard status {self.destination.release}`",
                    )
                self.last = last if last is not None and last.generation == self.destination.generation else None
                if self.last is None and self.destination.seed is not None:
                    self._write_seed(self.destination.seed)
            except Superseded as error:
                raise self._fenced_without_heir() from error
            except BaseException:
                # the next batch must connect again
                self._writer.drop()
                raise

    def disconnect(self) -> None:
        """Drops the producer after an outage: it could ask for its coordinator forever. The next batch connects.

        The query must not be in a batch.
        """
        with self._lock:
            self._writer.drop()

    def _write_seed(self, seed: Progress) -> None:
        """Writes the first progress record of a generation that a reset started, with the present end of its result."""
        self._write(
            seed.model_copy(update={"result": self._writer.acknowledged()}),
            seed.boundary.position.by_topic(self.destination.inputs),
        )

    @property
    def begun(self) -> bool:
        """Whether this generation has a batch."""
        return self.last is not None and self.last.boundary.batch_id >= 0

    def open(self, batches: int | None = None) -> None:
        """Lets that many batches run; None: without a limit. Forgets the last failure."""
        with self._lock:
            self.turnstile.open(batches)
            self.failure = None

    @property
    def position(self) -> SourcePosition:
        """The release's source position."""
        return self.last.boundary.position if self.last else self.destination.start

    def flag_for(self, order: MarkOrdered | None) -> None:
        """Flags the boundary that `order` asks for; None: no order stands."""
        self._order = order

    def has_flagged(self, order: MarkOrdered) -> bool:
        """Whether the boundary that `order` asks for has been flagged."""
        already = self._already(order)
        return already is not None and already.op == order.id

    def foreseen(self) -> Flagging | None:
        """The boundary that the batch under way will flag for the standing order; None: no batch will."""
        batch_id, order = self.in_batch, self._order
        # read after `in_batch`, so that a batch that has just ended doesn't count as under way
        last = self.last
        if batch_id is None or order is None or last is None or batch_id != last.boundary.batch_id + 1:
            return None
        return foreseen(
            order,
            self._end_of(self._checkpoint.planned(batch_id), last.boundary.position),
            self._already(order),
        )

    def flag_idle(self) -> bool:
        """Flags the last boundary for the standing order without a batch, because there is no more input.

        Returns whether it did. It does so only if no further batch is planned, and one without input would change
        nothing. A planned batch flags its own boundary: `foreseen` may have told of it, even by a driver that has died.
        """
        with self._lock:
            order, last = self._order, self.last
            if order is None or last is None or not self._checkpoint.committed(last.boundary.batch_id):
                return False
            if self._checkpoint.last_planned() != last.boundary.batch_id:
                return False
            if not self._checkpoint.settled(last.boundary.batch_id):
                return False
            boundary = last.boundary.model_copy(update={"settled": True})
            if not flags(order, boundary.previous, boundary, self._already(order)):
                return False
            self._write(last.model_copy(update={"boundary": boundary, **self._mark(order, boundary, last.result)}))
            return True

    def announce(self, *, paused: str | None = None, aligned: str | None = None, reached: str | None = None) -> None:
        """Writes the last boundary again, with marks: the operation for which the release `paused` or was `aligned`, or
        whose goal it has `reached`.
        """
        with self._lock:
            last = self._need_last()
            said = {"paused": paused, "aligned": aligned, "reached": reached}
            changes = {
                name: Mark(op=op, boundary=last.boundary, result=last.result)
                for name, op in said.items()
                if op is not None
            }
            self._write(last.model_copy(update=changes))

    def skip_to(self, position: SourcePosition, op: str) -> None:
        """Moves the release to `position` for operation `op`. No batch reads the records in between.

        The query must be stopped. After a crash half-way, a second call gives the same result.
        """
        with self._lock:
            last = self._need_last()
            self._checkpoint.stand_at(last.boundary.batch_id, position)
            boundary = last.boundary.model_copy(update={"position": position, "previous": None, "settled": False})
            mark = Mark(op=op, boundary=boundary, result=last.result)
            self._write(
                last.model_copy(update={"boundary": boundary, "reached": mark}),
                position.by_topic(self.destination.inputs),
            )

    # -- Spark's side

    def process_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Spark's call for batch `batch_id`. A batch that progress already holds is executed and written nowhere."""
        began, before = self._clock(), self.last
        with self.turnstile.call():
            self._run(rows, batch_id)
            self.batch_s = self._clock() - began
            if self.batch_s > 0 and self.last is not None and self.last is not before:
                self.best_records_per_s = max(self.best_records_per_s, self.last.batch.rows_in / self.batch_s)
            if self.turnstile.all_may_run:
                self._call_after_batch(batch_id)
            self.turnstile.leave(began)

    def _run(self, rows: DataFrame, batch_id: int) -> None:
        self._refuse_halted(batch_id)
        with self._lock:
            done = self.last.boundary.batch_id if self.last else -1
            # a committed batch may always run again: Spark's log must catch up
            if batch_id > done:
                self.turnstile.enter(batch_id)
            self.in_batch = batch_id
            try:
                self._process(rows, batch_id)
            except BaseException as error:
                self.failure = (batch_id, error)
                raise
            finally:
                self.in_batch = None
                self.finished_at = self._clock()
            self.turnstile.count(batch_id, new=batch_id > done)

    def _call_after_batch(self, batch_id: int) -> None:
        try:
            self._after_batch()
        except BaseException as error:
            self.failure = (batch_id + 1, error)
            raise

    def _process(self, rows: DataFrame, batch_id: int) -> None:
        if not self._writer.connected:
            self.connect()
        done = self.last.boundary.batch_id if self.last else -1
        if batch_id <= done:
            self._must_be_known(batch_id)
            # a plain return would skip it, but state and watermark must see its rows
            rows.write.format("noop").mode("overwrite").save()
            return
        if batch_id != done + 1:
            raise ProgressGap(
                f"{self.destination.release}: Spark's checkpoint is at batch {batch_id}, but batches are committed up to {done}",
                fix=f"the checkpoint does not belong to this result: restore the right one, or `switchyard reset {self.destination.release} --to-earliest`",
            )
        planned = self._checkpoint.planned(batch_id)
        position = self._checkpoint.position(planned)
        before = self.position
        # 1. execute: the one action of this batch
        table = self._serialize(rows).toArrow()
        metrics = self._metrics()
        # the broker may have restarted while Spark read
        self._reconnect()
        try:
            # 2. produce, and wait for the acknowledgements: that is the result position
            self._writer.begin()
            refused = self._send(table, self._replays.batch(before, position))
            if refused and self.destination.oversized == "stop":
                raise self._too_large(batch_id, *refused[0])
            self._set_apart(batch_id, metrics.malformed, refused)
            written = self._writer.acknowledged()
            counts = Counts(
                rows_in=metrics.rows_in,
                rows_out=table.num_rows - len(refused),
                late_dropped=metrics.late_dropped,
                dead_lettered=len(metrics.malformed) + len(refused),
            )
            boundary = self._end_of(planned, before)
            progress = self._progress(boundary, written, counts)
            # 3. - 5. progress record, the group's offsets, commit
            self._commit(progress, position.by_topic(self.destination.inputs))
        except Superseded as error:
            raise self._fenced_without_heir() from error
        except OutcomeUnknown:
            self.connect()
            if self.last is None or self.last.boundary.batch_id != batch_id:
                raise
        except BaseException:
            # after any error, even that of an offset request: the next try needs a new transaction
            self._writer.abort()
            raise

    def _end_of(self, planned: PlannedBatch, before: SourcePosition) -> Boundary:
        """The boundary at the end of a planned batch. `before`: where the batch starts."""
        position = self._checkpoint.position(planned)
        return Boundary(
            batch_id=planned.batch_id,
            position=position,
            previous=before,
            watermark_ms=planned.watermark_ms if self.destination.watermarked else None,
            # a batch without input already has the watermark of all input: another one would change nothing
            settled=not self.destination.watermarked or position == before,
        )

    def _send(self, table: pa.Table, replayed: Literal["all", "some", "none"]) -> list[tuple[str, Record, str]]:
        """Queues the records of a batch. Returns those that are too large, each with its topic before and the reason after it."""
        refused = []
        for result, topic in self.destination.results.items():
            rows = table.filter(pc.equal(table["result"], result)) if result else table
            refused += [(topic, *each) for each in self._writer.send(topic, self._records(rows, replayed))]
        return refused

    def _set_apart(
        self, batch_id: int, malformed: Sequence[DeadLetter], refused: Sequence[tuple[str, Record, str]]
    ) -> None:
        """Queues the dead letters of a batch: its malformed records, and rows that were refused as too large."""
        letters = dead_letter_topic(self.destination.release)
        for letter in malformed:
            again = self._replays.record(f"{letter.topic}:{letter.partition}:{letter.offset}")
            self._writer.send_dead(letters, letter.key, letter.value, _marked(letter.headers, again))
        for topic, (key, value, given), reason in refused:
            headers = [
                ("topic", topic.encode()),
                ("reason", reason.encode()),
                ("batch", str(batch_id).encode()),
                ("value-bytes", str(_size(value)).encode()),
            ]
            if (source := _source(given)) is not None:
                headers.append((SOURCE, source))
            again = _REPLAYED in (given or ())
            self._writer.send_dead(letters, (key or "").encode(), None, _marked(headers, again))

    def _too_large(self, batch_id: int, topic: str, record: Record, reason: str) -> RowTooLarge:
        key, value, headers = record
        name, source = self.destination.release, _source(headers)
        comes = f" from {source.decode()}" if source is not None else ""
        return RowTooLarge(
            f"{name}: batch {batch_id} has a row for {topic}{comes}, with the key {(key or 'null')[:_SHOWN]}, "
            f"whose value has {_size(value):,} bytes: {reason}",
            fix="make the row smaller in a new version, or let such rows become dead letters: @app(oversized='dead-letter'); "
            f"`switchyard bisect {name}` finds the record that the row comes from",
        )

    def _records(self, table: pa.Table, replayed: Literal["all", "some", "none"]) -> Iterator[Record]:
        unnamed: Headers | None = [_REPLAYED] if replayed == "all" else None
        for batch in table.to_batches(max_chunksize=50_000):
            keys, values, sources = (batch.column(name).to_pylist() for name in ("key", "value", "source"))
            for key, value, source in zip(keys, values, sources, strict=True):
                if source is None:
                    yield key, value, unnamed
                    continue
                again = replayed == "all" or (replayed == "some" and self._replays.record(source))
                yield key, value, _marked([(SOURCE, source.encode())], again)

    def _must_be_known(self, batch_id: int) -> None:
        """Raises ProgressGap if a batch to run again is not the committed one: its rows would be in no result."""
        last = self._need_last().boundary
        position = self._checkpoint.position(self._checkpoint.planned(batch_id))
        known = position.same(last.position) if batch_id == last.batch_id else last.position.dominates(position)
        if not known:
            raise ProgressGap(
                f"{self.destination.release}: batch {batch_id} is planned to end at {position.told()}, but the last committed "
                f"batch, {last.batch_id}, ends at {last.position.told()}",
                fix=f"the checkpoint is older than the result: restore the right one, or `switchyard reset {self.destination.release} --to-earliest`",
            )

    def _progress(self, boundary: Boundary, result: ResultPosition, counts: Counts) -> Progress:
        last, order = self.last, self._order
        marks: dict[str, Mark | None] = {name: getattr(last, name) if last else None for name in MARKS}
        if order is not None and flags(order, boundary.previous, boundary, self._already(order)):
            marks |= self._mark(order, boundary, result)
        return Progress(
            release=self.destination.release,
            generation=self.destination.generation,
            token=self.destination.token,
            boundary=boundary,
            result=result,
            batch=counts,
            total=(last.total if last else Counts()) + counts,
            at_ms=int(self._clock() * 1000),
            **marks,
        )

    def _mark(self, order: MarkOrdered, boundary: Boundary, result: ResultPosition) -> dict[str, Mark]:
        name = "evidence" if order.switch is None else "barrier"
        return {name: Mark(op=order.id, boundary=boundary, result=result)}

    def _already(self, order: MarkOrdered) -> Mark | None:
        if self.last is None:
            return None
        return self.last.evidence if order.switch is None else self.last.barrier

    def _write(self, progress: Progress, offsets: dict[str, dict[int, int]] | None = None) -> None:
        """Commits a progress record without a batch."""
        self._reconnect()
        progress = progress.model_copy(
            update={"token": self.destination.token, "batch": Counts(), "at_ms": int(self._clock() * 1000)}
        )
        try:
            self._writer.begin()
            self._commit(progress, offsets)
        except Superseded as error:
            raise self._fenced_without_heir() from error
        except KafkaException:
            self._writer.abort()
            raise

    def _reconnect(self) -> None:
        """Connects again if the connection is lost.

        Raises OutcomeUnknown if the release is further than was known: an unanswered commit did happen, and an older
        boundary must not follow it.
        """
        if self._writer.connected:
            return
        known = self.last
        self.connect()
        if self.last != known:
            raise OutcomeUnknown(f"the newest boundary of {self.destination.release} was not known")

    def _fenced_without_heir(self) -> TransactionEnded:
        """The error for a producer that the broker has fenced. Raises Superseded if another driver has the release."""
        self._writer.drop()
        self._admit()
        return TransactionEnded(
            f"the broker has fenced the producer of {self.destination.release}, but no other driver has the release: a transaction took longer "
            "than SWITCHYARD_TRANSACTION_TIMEOUT_S; the batch is written again"
        )

    def _refuse_halted(self, batch_id: int) -> None:
        if self._halted is not None:
            self.failure = (batch_id, self._halted)
            raise self._halted

    def _commit(self, progress: Progress, offsets: dict[str, dict[int, int]] | None) -> None:
        if self._halted is not None:
            raise self._halted
        self._writer.commit(progress, offsets)
        self.last = progress

    def _need_last(self) -> Progress:
        if self.last is None:
            raise SwitchyardError(
                f"{self.destination.release} has no committed batch yet", fix="wait until it has read something"
            )
        return self.last


def _size(value: str | bytes | None) -> int:
    return len(value.encode() if isinstance(value, str) else value or b"")


def _source(headers: Headers | None) -> bytes | None:
    """The source record that a row names."""
    return next((each for name, each in headers or () if name == SOURCE and isinstance(each, bytes)), None)


def batch_number(last: Progress | None) -> str:
    """The number of the last committed batch, for log lines."""
    return "none" if last is None else str(last.boundary.batch_id)


def _marked(headers: Sequence[tuple[str, bytes]], again: bool) -> Headers:
    """`headers`, plus that of a replay if `again`."""
    return [*headers, _REPLAYED] if again else [*headers]
