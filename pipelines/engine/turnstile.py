"""Where Spark's thread waits for the driver's: whether a batch may begin, and when one that has ended may return to Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipelines.engine.checkpoint import Checkpoint
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Progress
from pipelines.model.switch import pauses_by


class StopAtBoundary(Exception):
    """Raised into Spark at the start of a batch that must not run: a planned batch that never ran is clean."""


class Turnstile:
    """Lets the batches of `release` through one by one. The driver's thread opens and shuts it.

    `lock`: the sink has it while a batch runs. `last`: the last committed progress.
    """

    def __init__(
        self,
        release: str,
        checkpoint: Checkpoint,
        lock: threading.RLock,
        *,
        last: Callable[[], Progress | None],
        clock: Callable[[], float],
    ) -> None:
        self._release = release
        self._checkpoint = checkpoint
        self._lock = lock
        self._last = last
        self._clock = clock
        # guards what Spark's thread and the driver's say to each other; taken after the lock, never before it
        self._turn = threading.Condition()
        # whether ends of batches are held, and one is
        self._hold_ends = False
        self._at_rest = False
        # whether Spark is in a call, and the last batch that has ended in one
        self._called = False
        self._ended = -1
        # how many batches may begin; None: all that come
        self._budget: int | None = 0
        self._every_s = 0.0
        self._hurry = threading.Event()
        self._limit: SourcePosition | None = None
        self.refused_at_boundary = False

    # -- the driver's hand

    def open(self, batches: int | None = None) -> None:
        """Lets batches run: that many, or (None) all that come."""
        with self._lock:
            self._budget = batches
            self._hold_ends = self._at_rest = False
            self.pace(self._every_s)
            self.refused_at_boundary = False

    def hold(self) -> SourcePosition | None:
        """Lets no batch begin but one that is planned, and holds its end, without waiting for it. Returns where the release
        stands at the latest when that is at its end; None before the first one.
        """
        # first: a batch that is at its end now must not get away
        self.rest()
        self._budget = 0
        self._hurry.set()
        # after that: a batch that may end still was planned before
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
        """Holds the end of the batch that runs, or has run: Spark waits there, and plans nothing, until it is let go on."""
        with self._turn:
            self._hold_ends = True
        self._hurry.set()

    @property
    def at_rest(self) -> bool:
        """Whether the end of a batch is held: committed in Kafka, not yet in Spark's log."""
        return self._at_rest

    @property
    def comes_to_rest(self) -> bool:
        """Whether a batch runs, or is planned and will."""
        planned = self._checkpoint.last_planned()
        if self._called:
            return True
        if self._budget == 0 or planned is None:
            return False
        last = self._last()
        return last is None or planned > last.boundary.batch_id

    def let_go_on(self, batches: int | None) -> None:
        """Lets the batch end that is held. So many more may run, the last of which is held again; None: all, and none is."""
        with self._turn:
            self._hold_ends = batches is not None
            self._budget = batches
            self._at_rest = False
            self._turn.notify_all()

    def shut(self) -> None:
        """Lets no further batch begin; returns when one that runs is at its end."""
        self._hurry.set()
        with self._turn:
            self._hold_ends = self._at_rest = False
            self._turn.notify_all()
        # under the lock: else a batch could have looked at the budget and not yet said that it runs
        with self._lock:
            self._budget = 0

    def pace(self, every_s: float) -> None:
        """Makes a batch end `every_s` after its begin at the earliest, so that the next begins no sooner; 0: at once.

        Where the query is shut or held, or told to hurry by another pace, it ends then.
        """
        if every_s != self._every_s:
            self._hurry.set()
        self._every_s = every_s
        if every_s > 0 and self._budget is None:
            self._hurry.clear()

    def hurry(self) -> None:
        """Ends the wait of a batch that is paced."""
        self._hurry.set()

    def limit(self, to: SourcePosition | None) -> None:
        """Lets no batch run that would end past `to` on any partition; None: all may."""
        self._limit = to

    # -- Spark's thread

    @contextmanager
    def call(self) -> Iterator[None]:
        """While the block runs, Spark is in a call."""
        self._called = True
        try:
            yield
        finally:
            self._called = False

    def enter(self, batch_id: int) -> None:
        """Raises StopAtBoundary where new batch `batch_id` must not run. The sink has the lock."""
        if self._budget == 0:
            self.refused_at_boundary = True
            raise StopAtBoundary(f"batch {batch_id} of {self._release} must not run yet")
        # read once: the driver may lift it while the plan is read
        limit = self._limit
        if limit is not None:
            end = self._checkpoint.position(self._checkpoint.planned(batch_id))
            if not limit.dominates(end):
                self.refused_at_boundary = True
                raise StopAtBoundary(f"batch {batch_id} of {self._release} would go past its limit")

    def count(self, batch_id: int, *, new: bool) -> None:
        """Batch `batch_id` has ended well. `new`: it was not committed before. The sink has the lock."""
        with self._turn:
            self._ended = max(self._ended, batch_id)
            if self._budget is not None and new:
                self._budget = max(0, self._budget - 1)

    @property
    def all_may_run(self) -> bool:
        """Whether all batches that come may run."""
        return self._budget is None

    def leave(self, began: float) -> None:
        """Waits until a batch that began at `began` may return to Spark. Without the lock: whoever wants the boundary gets it."""
        if self._budget is None and self._every_s > 0:
            self._hurry.wait(max(0.0, began + self._every_s - self._clock()))
        with self._turn:
            self._at_rest = self._hold_ends
            while self._at_rest:
                self._turn.wait()
