"""Where Spark's thread waits for the driver's: whether a batch may start, and when the call of one returns to Spark."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipelines.engine.checkpoint import Checkpoint
from pipelines.model.pace import Pace
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Progress
from pipelines.model.switch import pauses_by

# Spark plans a batch in less time. A longer time between two batches is one without records
_LONGEST_PLANNING_S = 0.25


class StopAtBoundary(Exception):
    """Raised into Spark at the start of a batch that must not run. A batch that was only planned leaves no trace."""


class Turnstile:
    """Lets the batches of `release` through one by one. The driver's thread opens and shuts it.

    `lock`: the sink holds it while a batch runs. `last`: the last committed progress record.
    """

    def __init__(
        self,
        release: str,
        checkpoint: Checkpoint,
        lock: threading.RLock,
        *,
        last: Callable[[], Progress | None],
        timer: Callable[[], float],
    ) -> None:
        self._release = release
        self._checkpoint = checkpoint
        self._lock = lock
        self._last = last
        self._timer = timer
        # guards what Spark's thread and the driver's share; acquired after the lock, never before it
        self._turn = threading.Condition()
        # whether ends of batches are to be held, and whether one is held now
        self._hold_ends = False
        self._at_rest = False
        # whether Spark is calling the sink, and the last batch that ended
        self._called = False
        self._ended = -1
        # how many batches may start; None: no limit
        self._budget: int | None = 0
        self._pace = Pace()
        # from the end of one call to the start of the next, the last times: Spark asked for records, and planned
        self._between_s: deque[float] = deque(maxlen=8)
        self._left_at: float | None = None
        self._hurry = threading.Event()
        self._limit: SourcePosition | None = None
        self.refused_at_boundary = False

    # -- for the driver's thread

    def open(self, batches: int | None = None) -> None:
        """Lets that many batches run; None: without a limit."""
        with self._lock:
            self._budget = batches
            self._hold_ends = self._at_rest = False
            self._left_at = None
            self._between_s.clear()
            self.pace(self._pace)
            self.refused_at_boundary = False

    def hold(self) -> SourcePosition | None:
        """Lets only a batch start that is already planned, and holds its end. Does not wait for it.

        Returns the furthest position at which the release can then stand; None before the first batch.
        """
        # first, so that a batch that is about to end is held
        self.rest()
        self._budget = 0
        self._hurry.set()
        # read after that: every batch that can still run is planned by now
        last, planned = self._last(), self._checkpoint.last_planned()
        if last is None:
            return None
        under_way = planned if planned is not None and planned > last.boundary.batch_id else None
        end = None if under_way is None else self._checkpoint.position(self._checkpoint.planned(under_way))
        with self._turn:
            if under_way is not None and self._ended < under_way:
                self._budget = 1
        return pauses_by(last.boundary.position, end)

    def rest(self) -> None:
        """Holds the end of the batch that runs or has just run. Spark waits there and plans nothing until `resume`."""
        with self._turn:
            self._hold_ends = True
        self._hurry.set()

    @property
    def at_rest(self) -> bool:
        """Whether the end of a batch is held: committed in Kafka, not yet in Spark's log."""
        return self._at_rest

    @property
    def will_run_a_batch(self) -> bool:
        """Whether a batch runs, or is planned and will run."""
        planned = self._checkpoint.last_planned()
        if self._called:
            return True
        if self._budget == 0 or planned is None:
            return False
        last = self._last()
        return last is None or planned > last.boundary.batch_id

    def resume(self, batches: int | None) -> None:
        """Releases the held batch. `batches`: how many more may run, of which the last is held; None: no limit."""
        with self._turn:
            self._hold_ends = batches is not None
            self._budget = batches
            self._at_rest = False
            self._turn.notify_all()

    def shut(self) -> None:
        """Lets no further batch start. Returns when a running one has ended."""
        self._hurry.set()
        with self._turn:
            self._hold_ends = self._at_rest = False
            self._turn.notify_all()
        # under the lock: a batch must not be between reading the budget and marking itself as running
        with self._lock:
            self._budget = 0

    def pace(self, pace: Pace) -> None:
        """Makes batches end so late that the next one starts when `pace` says.

        A wait ends early when the query is shut or held, or when the pace changes.
        """
        if pace != self._pace:
            self._hurry.set()
        self._pace = pace
        if pace != Pace() and self._budget is None:
            self._hurry.clear()

    def hurry(self) -> None:
        """Ends the wait of a paced batch."""
        self._hurry.set()

    def limit(self, to: SourcePosition | None) -> None:
        """Lets no batch run that would end past `to` on any partition; None: no limit."""
        self._limit = to

    # -- for Spark's thread

    @contextmanager
    def call(self) -> Iterator[None]:
        """Spark is calling the sink while the block runs."""
        if self._left_at is not None:
            self._between_s.append(self._timer() - self._left_at)
        self._called = True
        try:
            yield
        finally:
            self._called = False
            self._left_at = self._timer()

    def enter(self, batch_id: int) -> None:
        """Raises StopAtBoundary if the new batch `batch_id` must not run. The sink holds the lock."""
        if self._budget == 0:
            self.refused_at_boundary = True
            raise StopAtBoundary(f"batch {batch_id} of {self._release} must not run yet")
        # read once: the driver may remove it while the plan is read
        limit = self._limit
        if limit is not None:
            end = self._checkpoint.position(self._checkpoint.planned(batch_id))
            if not limit.dominates(end):
                self.refused_at_boundary = True
                raise StopAtBoundary(f"batch {batch_id} of {self._release} would go past its limit")

    def count(self, batch_id: int, *, new: bool) -> None:
        """Batch `batch_id` has succeeded. `new`: it was not committed before. The sink holds the lock."""
        with self._turn:
            self._ended = max(self._ended, batch_id)
            if self._budget is not None and new:
                self._budget = max(0, self._budget - 1)

    @property
    def has_run(self) -> bool:
        """Whether a batch has succeeded, new or not."""
        return self._ended >= 0

    @property
    def all_may_run(self) -> bool:
        """Whether the number of batches is not limited."""
        return self._budget is None

    def leave(self, began: float, *, full: bool) -> None:
        """Waits until a batch whose call began at `began` may return to Spark. Call it without the lock.

        `full`: it has left records unread.
        """
        if self._budget is None:
            # a record waits for the planning of its batch, too. Between two batches, Spark may also wait for records: so
            # the shortest of these times counts
            planning_s = min(min(self._between_s, default=0.0), _LONGEST_PLANNING_S)
            batch_s = planning_s + self._timer() - began
            self._hurry.wait(max(0.0, self._pace.every_s(batch_s, full=full) - batch_s))
        with self._turn:
            self._at_rest = self._hold_ends
            while self._at_rest:
                self._turn.wait()
