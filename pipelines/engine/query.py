"""The query of a release: starts it, pauses it at a boundary, and runs exactly one batch to a given position."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakMethod

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipelines.engine.batch_writer import BatchWriter
from pipelines.engine.catch_up import CatchUp, is_behind, is_half_moved, move_to_record, require_input
from pipelines.engine.checkpoint import Checkpoint
from pipelines.engine.destination import Destination
from pipelines.engine.ending import Ending
from pipelines.engine.expressions import Expressions
from pipelines.engine.frames import input_streams
from pipelines.engine.history import Portion
from pipelines.engine.metrics import BatchMetrics, batch_metrics
from pipelines.engine.results import result_of, serializer
from pipelines.engine.sink import Sink
from pipelines.engine.source_ends import SourceEnds
from pipelines.engine.static import StaticTables
from pipelines.errors import SwitchyardError
from pipelines.kafka.offsets import first_offsets
from pipelines.kafka.progress import recorded_since
from pipelines.model.app import App
from pipelines.model.entries import ReleaseSpec
from pipelines.model.limits import QUICK_S, SLOW_S, Limits
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Boundary
from pipelines.model.recorded import RecordedBatch
from pipelines.model.switch import merged
from pipelines.settings import Settings

log = logging.getLogger("switchyard.driver")

_POLL_S = 0.01
# how long it may take until the end of a stopped query is known
_END_S = 5.0


class PlanStands(SwitchyardError):
    """The next batch needs another plan, but executors of this driver may still run it as it was planned.

    Only a driver with another token has a checkpoint folder into which they don't write.
    """


class Query:
    """One release's Spark query on one checkpoint. A pause keeps the Spark session.

    The sink exists from the start, so that it can connect while Spark starts. `prepare` makes the frame that runs.
    `while_catching_up` is called again and again while batches that the checkpoint lacks run: it raises if the driver must end.
    """

    _frame: DataFrame
    _expressions: Expressions
    _limits: Limits
    _first: Limits
    _most: Limits
    _portion: Portion

    def __init__(
        self, settings: Settings, app: App, spec: ReleaseSpec, destination: Destination, checkpoint: Checkpoint, writer: BatchWriter,
        admit: Callable[[], None], while_catching_up: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._while_catching_up = while_catching_up
        self._settings = settings
        self._app = app
        self._spec = spec
        self._release = spec.release
        self._checkpoint = checkpoint
        self._query: Any = None
        self._ending: Ending | None = None
        self._source_ends: SourceEnds | None = None
        # the last batch for which this class set an end
        self._bounded = -1
        self._started = threading.Event()
        self.sink = Sink(
            destination,
            writer,
            checkpoint,
            serialize=serializer(app),
            metrics=self._metrics,
            admit=admit,
            after_batch=self._after_batch,
        )

    def prepare(
        self, spark: SparkSession, first: Limits, most: Limits, portion: Portion, tables: StaticTables, *, ahead_records: int
    ) -> None:  # fmt: skip
        """Makes the frame that runs. `first`: limits of the first batches; while batches are quick, the limits rise up to
        `most`. `ahead_records`: how many records the input has that are not read yet.

        Raises BadUsage if the result of the app's function can't be written, TableChanged as `StaticTables.frames` does.
        """
        self._limits, self._first, self._most, self._portion = first, first, most, portion
        self._expressions = Expressions(spark, ahead_records)
        start = self.sink.destination.start
        frames = input_streams(spark, self._settings, self._app, start, most.by_source)
        frames |= tables.frames(spark, self._app)
        self._frame = result_of(self._app, frames, self._spec.settings)

    def start(self, batches: int | None = None) -> None:
        """Starts the query, or resumes one that rests. `batches`: how many new ones it runs; None: without end."""
        if self._rests:
            if batches is None and self._source_ends is not None and self._tell_sources(self._set_portion):
                self.sink.turnstile.resume(None)
                return
            self.stop()
        if batches is None:
            self._plan_first_portion()
        self._source_ends, self._limits = None, self._first
        self._started.clear()
        self.sink.open(batches)
        self._expressions.start()
        self._query = (
            self._frame.writeStream.foreachBatch(_weakly_bound(self._process_batch))
            .outputMode(self._app.output_mode)
            .option("checkpointLocation", str(self._checkpoint.path))
            .queryName(self._release)
            # the sink sets the pace
            .trigger(processingTime="0 seconds")
            .start()
        )
        self._ending = Ending(self._query)
        self._started.set()

    def _plan_first_portion(self) -> None:
        """Plans the first batch by hand if it reads a portion of history: its sources can't be limited before it."""
        # the standing plan may be that of a batch which Kafka has committed
        self.sink.look_again()
        self._run_lacking_batches()
        end = self._portion(self.sink.position, self._first)
        if end is None:
            return
        if self._checkpoint.last_planned() is None:
            # makes Spark write a plan that can be changed, of a batch that must not run
            self.start(0)
            while self.active:
                time.sleep(_POLL_S)
        self.catch_up()
        if self._checkpoint.last_planned() is not None and not self._may_run_elsewhere:
            self._bounded = self._checkpoint.plan_next(end)

    @property
    def _may_run_elsewhere(self) -> bool:
        """Whether executors on other hosts may still have tasks of the next batch: this driver has tried it, and it failed.

        Such a task writes state under the name that the next try uses. That is harmless only while both have one plan.
        """
        last = self._checkpoint.last_committed()
        return self._settings.executors_elsewhere and self.sink.tried > (-1 if last is None else last)

    def _plan_to(self, target: SourcePosition) -> int:
        """Plans the next batch to end at `target`. Returns its number. Raises PlanStands if it must run as it is planned."""
        if not self._may_run_elsewhere:
            return self._checkpoint.plan_next(target)
        standing, before = (
            self._checkpoint.position(self._checkpoint.planned(number))
            for number in (self.sink.tried, max(self.sink.tried - 1, 0))
        )
        if standing != merged(before, target):
            raise PlanStands(
                f"batch {self.sink.tried} of {self._release} has failed, and executors may still run it; it can't be given another end",
                fix=f"`switchyard start {self._release} --execute` starts another driver, which can; a supervisor does so by itself",
            )
        return self.sink.tried

    def _process_batch(self, rows: DataFrame, batch_id: int) -> None:
        self.sink.process_batch(rows, batch_id)
        if self.sink.last is not None:
            self._expressions.after_batch(rows.sparkSession, self.sink.last.batch.rows_in)

    def _after_batch(self) -> bool:
        """Limits the next batch to a portion of history, if one is left: none is after a batch that was not full.

        Returns whether the batch has left records unread.
        """
        self._started.wait(30)
        last = self.sink.last
        if last is not None and not self.is_bounded(last.boundary.batch_id) and not self._full(last.boundary):
            return False
        if last is not None:
            self._adapt_limits(last.batch.rows_in)
        self._set_portion()
        return True

    def _adapt_limits(self, records: int) -> None:
        """The limits of the next batch, after one that read `records`."""
        if records >= self._limits.total // 2 and self.sink.batch_s < QUICK_S:
            self._limits = self._limits.grown(self._most)
        elif self.sink.batch_s > SLOW_S:
            self._limits = self._first

    def _full(self, boundary: Boundary) -> bool:
        return boundary.previous is None or boundary.position.records_since(boundary.previous) >= self._limits.full

    def _set_portion(self) -> None:
        """Ends Spark's sources at the end of the next portion of history, or removes their limit. Spark must wait."""
        end = self._portion(self.sink.position, self._limits)
        if end is not None:
            if self._source_ends is None:
                self._find_sources()
            self._end_next_batch_at(end)
        elif self._source_ends is not None:
            self._source_ends.lift()

    def _end_next_batch_at(self, end: SourcePosition) -> None:
        assert self._source_ends is not None
        last = self.sink.last
        self._bounded = last.boundary.batch_id + 1 if last else 0
        self._source_ends.limit_to(end)

    def _limit_next(self, end: SourcePosition) -> bool:
        """Ends the next batch at `end`. Spark must wait. False: this code doesn't know its sources."""
        # the first batch can arrive before start() has returned
        self._started.wait(30)

        def limit() -> None:
            if self._source_ends is None:
                self._find_sources()
            assert self._source_ends is not None
            self._source_ends.limit_to(end)

        return self._tell_sources(limit)

    def is_bounded(self, batch_id: int) -> bool:
        """Whether batch `batch_id` had a limit. Then Spark's report of it omits the records after the limit."""
        return batch_id <= self._bounded

    @property
    def active(self) -> bool:
        return self._ending is not None and not self._ending.is_over

    def error(self) -> BaseException | None:
        """The error that ended the query; None if it runs or was stopped at a boundary."""
        if self._query is None or self._query.isActive or self.sink.turnstile.refused_at_boundary:
            return None
        if self.sink.failure is not None:
            return self.sink.failure[1]
        error: BaseException | None = self._query.exception()
        return error

    def last_progress(self) -> dict[str, Any]:
        """Spark's own report of the last batch; empty before the first."""
        progress = self._query.lastProgress if self._query is not None else None
        return dict(json.loads(progress.json)) if progress is not None else {}

    def stop(self) -> None:
        """Stops at a boundary: the batch under way ends in Kafka and in Spark's log first. Returns when it has stopped.

        A halted sink commits nothing more, so then there is no boundary to wait for.
        """
        self.sink.turnstile.shut()
        while self.active:
            if self.sink.in_batch is None and (self.sink.halted or self._is_level()):
                self._end()
                return
            time.sleep(_POLL_S)

    def _end(self) -> None:
        """Ends the query, whatever Spark does. What it has not committed runs again."""
        if self.active:
            self._query.stop()
            if self._ending is not None:
                self._ending.wait(_END_S)

    def rest(self) -> None:
        """Stops at a boundary. Holds the end of a running batch, so that the query can resume; else it stops."""
        self.sink.turnstile.rest()
        while self.active and not self.sink.turnstile.at_rest and self.sink.turnstile.will_run_a_batch:
            time.sleep(_POLL_S)
        self._hold_or_stop()

    def _hold_or_stop(self) -> None:
        """Finds the sources of a query that rests. Stops one that doesn't rest, or whose sources can't be limited."""
        if self._rests and self._source_ends is None:
            self._tell_sources(self._find_sources)
        if not self._rests or self._source_ends is None:
            self.stop()

    def _find_sources(self) -> None:
        self._source_ends = SourceEnds(self._query, self._app.topics)

    def _tell_sources(self, tell: Callable[[], None]) -> bool:
        """Whether `tell` worked. If this code doesn't know Spark's sources, the query must be stopped."""
        try:
            tell()
        except (Py4JError, PySparkException, LookupError) as error:
            log.warning("%s: Spark's sources can't be limited, so the query stops: %s", self._release, error)
            return False
        return True

    @property
    def _rests(self) -> bool:
        return self.sink.turnstile.at_rest and self.active

    def _is_level(self) -> bool:
        """Whether Spark's log has the last batch that was committed in Kafka."""
        last = self.sink.last
        return last is None or not self.sink.has_begun or self._checkpoint.committed(last.boundary.batch_id)

    def catch_up(self) -> None:
        """Brings Spark's log up to progress: a batch committed only in Kafka runs again and is written nowhere."""
        if not self.active or self._rests:
            self.sink.look_again()
        last = self.sink.last
        if last is None or self._rests:
            return
        self._run_lacking_batches()
        if not self._is_level():
            self._run_to(last.boundary.batch_id, 0, lambda: None)

    def _run_lacking_batches(self) -> None:
        """Runs the batches again that the checkpoint lacks and Kafka has, if a restart of the query alone would not.

        Raises ProgressGap if they can't run as they did.
        """
        last = self.sink.last
        if last is None or not self.sink.has_begun or not is_behind(self._checkpoint, last):
            return
        since = max(0, self._checkpoint.newest)
        recorded = recorded_since(self._settings, self._release, last.generation, since)
        number = last.boundary.batch_id
        if is_half_moved(self._checkpoint, recorded, number):
            # the operation that was killed meanwhile moves it again
            return
        catch_up = CatchUp(
            self._checkpoint, recorded, number, release=self._release, limit=self._limit_next, at_once=self._at_once
        )
        self.sink.catch_up = catch_up
        try:
            self._run_recorded(catch_up, recorded)
        finally:
            self.sink.catch_up = None

    def _run_recorded(self, catch_up: CatchUp, recorded: Mapping[int, RecordedBatch]) -> None:
        move_to_record(self._checkpoint, recorded, self._release)
        done = self._checkpoint.newest
        here = recorded[done].left_at if done in recorded else self.sink.destination.start
        topics = here.by_topic(self.sink.destination.inputs)
        require_input(topics, first_offsets(self._settings, topics), self._release)
        while (done := self._checkpoint.newest) < catch_up.last:
            self._while_catching_up()
            log.info(
                "%s: its checkpoint is at batch %d; the batches up to %d run again and are written nowhere",
                self._release,
                done,
                catch_up.last,
            )
            self._plan_to(catch_up.batch(done + 1).end)
            catch_up.begin()
            try:
                self.start(0)
                while self.active and not catch_up.must_stop():
                    self._while_catching_up()
                    time.sleep(_POLL_S)
            finally:
                # it is not level with Kafka yet, so it can't stop at a boundary
                self._end()
            error = self.error()
            if error is not None and not self._checkpoint.committed(catch_up.stops_after):
                raise error
            move_to_record(self._checkpoint, recorded, self._release)

    def run_to(self, target: SourcePosition, check: Callable[[], None]) -> None:
        """Runs exactly one batch, to `target`, then rests or stops. Calls `check`, which may raise, while it waits.

        Raises PlanStands if only another driver can.
        """
        if self._rests and self._run_without_restart(target, check):
            return
        self.stop()
        self.catch_up()
        self._run_to(self._plan_to(target), 1, check, rest=True)

    def _run_without_restart(self, target: SourcePosition, check: Callable[[], None]) -> bool:
        """Runs one batch to `target` in the resting query, which then rests again. False: this needs a restart."""
        here = self.sink.position
        end = merged(here, target)
        # must be planned by hand: a batch without input, and one that Spark might split. Spark splits its limit into
        # shares, rounded down, so a batch of exactly the limit would leave a record
        ends = self._source_ends
        if ends is None or not end.dominates(here) or not (end.records_since(here) and self._at_once(here, end)):
            return False
        if not self._tell_sources(lambda: self._end_next_batch_at(end)):
            return False
        self.sink.turnstile.resume(1)
        while self.active and not self.sink.turnstile.at_rest:
            check()
            time.sleep(_POLL_S)
        error = self.error()
        if error is not None:
            raise error
        return self._rests and self.sink.position.same(end)

    def _at_once(self, here: SourcePosition, end: SourcePosition) -> bool:
        limits = self._most.by_source
        return all(SourcePosition(sources={n: o}).records_since(here) < limits[n] for n, o in end.sources.items())

    def run_first(self, check: Callable[[], None]) -> None:
        """Runs until the first batch is committed; waits for input. Calls `check` as `run_to` does."""
        self._plan_first_portion()
        self.start(1)
        while self.active and not self.sink.has_begun:
            check()
            time.sleep(_POLL_S)
        self.stop()

    def describe_range(self, batch_id: int) -> str:
        """What a planned batch reads, for messages: `trades[0] 100-199, trades[1] 80-170`."""
        end = self._checkpoint.position(self._checkpoint.planned(batch_id)).sources
        last = self.sink.last
        start = (last.boundary.position if last else self.sink.destination.start).sources
        return ", ".join(
            f"{self.sink.destination.inputs[name]}[{p}] {start.get(name, {}).get(p, 0)}-{offset - 1}"
            for name, offsets in end.items()
            for p, offset in sorted(offsets.items())
            if offset > start.get(name, {}).get(p, 0)
        )

    def _run_to(self, batch_id: int, batches: int, check: Callable[[], None], *, rest: bool = False) -> None:
        self.start(batches)
        if rest:
            self.sink.turnstile.rest()
        while self.active and not self.sink.turnstile.at_rest and not self._checkpoint.committed(batch_id):
            check()
            time.sleep(_POLL_S)
        self._hold_or_stop()
        error = self.error()
        if error is not None:
            raise error
        if not self._rests and not self._checkpoint.committed(batch_id):
            raise SwitchyardError(
                f"batch {batch_id} of {self._release} did not end",
                fix=f"`switchyard start {self._release} --execute` starts it again, and it repeats the batch",
            )

    def _metrics(self) -> BatchMetrics:
        # the first batch can arrive before start() has returned
        self._started.wait(30)
        return batch_metrics(self._query, self._app.sources)


def _weakly_bound(method: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """`method` with a weak reference to its object: the JVM keeps callbacks, and with a query its Kafka clients."""
    found = WeakMethod(method)

    def call(frame: DataFrame, batch_id: int) -> None:
        alive = found()
        if alive is not None:
            alive(frame, batch_id)

    return call
