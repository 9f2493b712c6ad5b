"""The goal of a generation: a boundary that a reset may set. The release must end a batch there before it runs on."""

from __future__ import annotations

import logging

from pipelines.engine.orders import Orders, StopWanted
from pipelines.engine.query import Query
from pipelines.engine.telemetry import DriverStatus
from pipelines.model.entries import GenerationStarted, WantedSet
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Boundary, Mark
from pipelines.model.reset import free_until, goal, may_pass, next_stop
from pipelines.model.switch import steps_to

log = logging.getLogger("switchyard.driver")


class Goal:
    """The goal of the generation that began with `started`, and the way there. `batch_records`: the limit of a batch."""

    def __init__(
        self,
        name: str,
        query: Query,
        orders: Orders,
        status: DriverStatus,
        *,
        started: GenerationStarted | None,
        batch_records: int,
    ) -> None:
        self.may_pass = may_pass(started)
        self._name = name
        self._query = query
        self._orders = orders
        self._status = status
        self._batch_records = batch_records
        self._mark = goal(started)

    @property
    def ahead(self) -> Mark | None:
        """The boundary that this generation has yet to reach; None if it has reached it, or has none."""
        last, wanted = self._query.sink.last, self._mark
        if wanted is None or (last is not None and last.reached is not None and last.reached.op == wanted.op):
            return None
        passed = self.may_pass and self._query.sink.position.dominates(wanted.boundary.position)
        return None if passed else wanted

    def free_until(self) -> SourcePosition | None:
        """How far the query may read in batches that Spark plans; None: without a limit."""
        wanted = self.ahead
        return free_until(wanted) if wanted is not None else None

    def is_next(self, wanted: Mark) -> bool:
        """Whether the next batch that Spark plans would go past `free_until`."""
        sink = self._query.sink
        return sink.turnstile.refused_at_boundary or (sink.has_begun and sink.position.dominates(free_until(wanted)))

    def reach(self, wanted: Mark) -> None:
        """Runs to exactly `wanted`, in batches planned by hand. Raises StopWanted at the end of a bounded replay."""
        query = self._query
        self._status.state = "aligning"
        query.stop()
        query.catch_up()
        # batches planned by hand need no limit
        query.sink.turnstile.limit(None)
        start = Boundary(batch_id=-1, position=query.sink.position)
        try:
            while steps := steps_to(wanted, query.sink.last.boundary if query.sink.last else start):
                stop = next_stop(wanted, steps, query.sink.position, self._batch_records)
                query.run_to(stop, self._orders.check_newest)
            release = self._orders.release()
            if release.bounded:
                # before the mark: after a crash between the two, the release must not run on
                reason = f"the replay of {wanted.op} has reached its end"
                self._orders.enter(WantedSet(release=self._name, wanted="stopped"), reason)
            if release.under is not None and (left_out := release.under.left_out) is not None:
                query.stop()
                query.sink.skip_to(left_out.end, wanted.op)
            else:
                query.sink.announce(reached=wanted.op)
        except BaseException:
            query.sink.turnstile.limit(self.free_until())
            raise
        log.info("%s: at the boundary that %s asks for", self._name, wanted.op)
        if release.bounded:
            raise StopWanted
