"""The sink: commits a batch's result, its progress record and the group's offsets in one transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaException
from pyspark.sql import DataFrame

from pipelines.engine.batch_writer import BatchWriter
from pipelines.engine.catch_up import CatchUp
from pipelines.engine.checkpoint import Checkpoint
from pipelines.engine.destination import Destination
from pipelines.engine.gap import is_committed
from pipelines.engine.jvm_producer import BatchRecords
from pipelines.engine.marks import Marks, announced
from pipelines.engine.metrics import BatchMetrics
from pipelines.engine.records import as_sent, dead_letters, too_large
from pipelines.engine.turnstile import Turnstile
from pipelines.engine.writer import OutcomeUnknown, Superseded, TransactionEnded
from pipelines.errors import SwitchyardError, Unavailable
from pipelines.kafka.progress import ProgressLost
from pipelines.model.names import dead_letter_topic
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Counts, Progress
from pipelines.model.reset import Replays


class Sink:
    """Spark's foreachBatch function, and the driver's control of it. `turnstile` decides which batches run, and when;
    `marks`, which boundaries are flagged for operations. Only the sink writes.

    `serialize` turns the batch's rows into records, as `results.serialized` does. `execute` computes them. `metrics` asks Spark about the batch
    that just ran. `admit` raises if a newer driver has the release. `after_batch` is called at the end of a batch while
    Spark waits, unless the number of batches is limited; it returns whether the batch has left records unread.
    """

    def __init__(
        self,
        destination: Destination,
        writer: BatchWriter,
        checkpoint: Checkpoint,
        *,
        serialize: Callable[[DataFrame], DataFrame],
        metrics: Callable[[], BatchMetrics],
        execute: Callable[[DataFrame], BatchRecords] = BatchRecords,
        admit: Callable[[], None] = lambda: None,
        after_batch: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.destination = destination
        self._writer = writer
        self._checkpoint = checkpoint
        self._serialize = serialize
        self._execute = execute
        self._metrics = metrics
        self._admit = admit
        self._after_batch = after_batch
        self._clock, self._timer = clock, timer
        self._lock = threading.RLock()
        self.turnstile = Turnstile(destination.release, checkpoint, self._lock, last=lambda: self.last, timer=timer)
        self.marks = Marks(checkpoint, destination.watermarked, last=lambda: self.last, in_batch=lambda: self.in_batch)
        self._replays = Replays(destination.processed, destination.inputs)
        self.last: Progress | None = None
        self.in_batch: int | None = None
        # the newest batch whose rows this driver has read, or tried to; -1: none
        self.tried = -1
        self.finished_at = clock()
        # how long the last batch took, without the wait at its end
        self.batch_s = 0.0
        # records per second of the fastest committed batch
        self.best_records_per_s = 0.0
        self.failure: tuple[int, BaseException] | None = None
        self._halted: SwitchyardError | None = None
        # while batches that the checkpoint lacks run again
        self.catch_up: CatchUp | None = None

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

    @property
    def has_begun(self) -> bool:
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

    def flag_idle(self) -> bool:
        """Flags the last boundary for the standing order without a batch, as `Marks.idle` says. Returns whether it did."""
        with self._lock:
            progress = self.marks.idle()
            if progress is None:
                return False
            self._write(progress)
            return True

    def announce(self, *, paused: str | None = None, aligned: str | None = None, reached: str | None = None) -> None:
        """Writes the last boundary again, with marks: the operation for which the release `paused` or was `aligned`, or
        whose goal it has `reached`.
        """
        with self._lock:
            self._write(announced(self._need_last(), paused=paused, aligned=aligned, reached=reached))

    def skip_to(self, position: SourcePosition, op: str) -> None:
        """Moves the release to `position` for operation `op`. No batch reads the records in between.

        The query must be stopped. After a crash half-way, a second call gives the same result.
        """
        with self._lock:
            last = self._need_last()
            self._checkpoint.move_end_of(last.boundary.batch_id, position)
            boundary = last.boundary.model_copy(update={"position": position, "previous": None, "settled": False})
            moved = last.model_copy(update={"boundary": boundary})
            self._write(announced(moved, reached=op), position.by_topic(self.destination.inputs))

    # -- Spark's side

    def process_batch(self, rows: DataFrame, batch_id: int) -> None:
        """Spark's call for batch `batch_id`. A batch that progress already holds is executed and written nowhere."""
        began, before = self._timer(), self.last
        with self.turnstile.call():
            self._run(rows, batch_id)
            self.batch_s = self._timer() - began
            if self.batch_s > 0 and self.last is not None and self.last is not before:
                self.best_records_per_s = max(self.best_records_per_s, self.last.batch.rows_in / self.batch_s)
            full = self._call_after_batch(batch_id)
            self.turnstile.leave(began, full=full)

    def _run(self, rows: DataFrame, batch_id: int) -> None:
        if self._halted is not None:
            self.failure = (batch_id, self._halted)
            raise self._halted
        with self._lock:
            done = self.last.boundary.batch_id if self.last else -1
            # a committed batch may always run again: Spark's log must catch up
            if batch_id > done:
                self.turnstile.enter(batch_id)
            self.in_batch = batch_id
            try:
                if self.catch_up is not None:
                    self.catch_up.check(batch_id)
                self.tried = batch_id
                self._process(rows, batch_id)
            except BaseException as error:
                self.failure = (batch_id, error)
                raise
            finally:
                self.in_batch = None
                self.finished_at = self._clock()
            self.turnstile.count(batch_id, new=batch_id > done)

    def _call_after_batch(self, batch_id: int) -> bool:
        try:
            if self.catch_up is not None:
                self.catch_up.after(batch_id)
            return self.turnstile.all_may_run and self._after_batch()
        except BaseException as error:
            self.failure = (batch_id + 1, error)
            raise

    def _process(self, rows: DataFrame, batch_id: int) -> None:
        if not self._writer.connected:
            self.connect()
        if is_committed(batch_id, self.last, self._checkpoint, release=self.destination.release):
            # a plain return would skip it, but state and watermark must see its rows
            rows.write.format("noop").mode("overwrite").save()
            if self.catch_up is not None:
                self.catch_up.check_rows(batch_id, self._metrics().rows_in)
        else:
            self._commit_batch(rows, batch_id)

    # -- transactions

    def _commit_batch(self, rows: DataFrame, batch_id: int) -> None:
        """1. Executes the batch. 2. Produces its records. 3. Adds the progress record, 4. the group's offsets. 5. Commits."""
        before = self.position
        boundary = self._checkpoint.boundary(batch_id, before, watermarked=self.destination.watermarked)
        # 1. execute: the one action of this batch
        records = self._execute(self._serialize(rows))
        try:
            metrics = self._metrics()
            # the broker may have restarted while Spark read
            self._reconnect()
            self._write_batch(records, metrics, boundary, before)
        finally:
            records.close()

    def _write_batch(
        self, records: BatchRecords, metrics: BatchMetrics, boundary: Boundary, before: SourcePosition
    ) -> None:
        try:
            self._writer.begin()
            # 2. produce, and wait for the acknowledgments: that is the result position
            counts = self._produce(records, metrics, before, boundary)
            written = self._writer.acknowledged()
            # 3. - 5. progress record, the group's offsets, commit
            progress = self._progress(boundary, written, counts)
            self._commit(progress, boundary.position.by_topic(self.destination.inputs))
        except Superseded as error:
            raise self._fenced_without_heir() from error
        except OutcomeUnknown:
            self.connect()
            if self.last is None or self.last.boundary.batch_id != boundary.batch_id:
                raise
        except BaseException as error:
            # after any error, even that of an offset request: the next try needs a new transaction
            self._writer.abort()
            if self._halted is not None:
                # it made the writer give up
                raise self._halted from error
            raise

    def _produce(
        self, records: BatchRecords, metrics: BatchMetrics, before: SourcePosition, boundary: Boundary
    ) -> Counts:
        """Queues a batch's records and its dead letters. Raises RowTooLarge if a row is, and must not become a dead letter."""
        to = self.destination
        replayed = self._replays.batch(before, boundary.position)
        unsent = self._writer.write(records, to.results, self._replays, replayed, in_turn=to.tables)
        if unsent and to.oversized == "stop":
            raise too_large(to.release, boundary.batch_id, unsent[0])
        letters = dead_letters(boundary.batch_id, metrics.malformed, unsent, self._replays)
        self._writer.send(dead_letter_topic(to.release), map(as_sent, letters))
        return Counts(
            rows_in=metrics.rows_in,
            rows_out=records.rows - len(unsent),
            late_dropped=metrics.late_dropped,
            dead_lettered=len(metrics.malformed) + len(unsent),
        )

    def _progress(self, boundary: Boundary, result: ResultPosition, counts: Counts) -> Progress:
        return Progress(
            release=self.destination.release,
            generation=self.destination.generation,
            token=self.destination.token,
            boundary=boundary,
            result=result,
            batch=counts,
            total=(self.last.total if self.last else Counts()) + counts,
            at_ms=int(self._clock() * 1000),
            **self.marks.at(boundary, result),
        )

    def _commit(self, progress: Progress, offsets: dict[str, dict[int, int]] | None) -> None:
        if self._halted is not None:
            raise self._halted
        self._writer.commit_progress(progress, offsets)
        self.last = progress

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

    def _write_seed(self, seed: Progress) -> None:
        """Writes the first progress record of a generation that a reset started, with the present end of its result."""
        self._write(
            seed.model_copy(update={"result": self._writer.acknowledged()}),
            seed.boundary.position.by_topic(self.destination.inputs),
        )

    def _need_last(self) -> Progress:
        if self.last is None:
            raise SwitchyardError(
                f"{self.destination.release} has no committed batch yet",
                fix=f"wait for its first batch; `switchyard status {self.destination.release}` shows it",
            )
        return self.last

    # -- the connection

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
            except ProgressLost as error:
                self._writer.drop()
                # the driver's watch decides whether the topic is gone; until then this is an outage
                raise Unavailable(error.what, fix=error.fix) from error
            except BaseException:
                # the next batch must connect again
                self._writer.drop()
                raise

    def look_again(self) -> None:
        """Connects if the producer was dropped: the last commit may have happened, and only Kafka knows. Raises as `connect`
        does. The query must not be in a batch.
        """
        with self._lock:
            if not self._writer.connected:
                self.connect()

    def disconnect(self) -> None:
        """Drops the producer after an outage: it could ask for its coordinator forever. The next batch connects.

        The query must not be in a batch.
        """
        with self._lock:
            self._writer.drop()

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
