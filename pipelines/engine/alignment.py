"""Meets another release: the query pauses, waits until the other release flags a boundary, and runs exactly to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from pipelines.engine.orders import Orders
from pipelines.engine.query import Query
from pipelines.engine.telemetry import DriverStatus, batch_number
from pipelines.errors import Unavailable
from pipelines.kafka.heartbeats import HeartbeatTail
from pipelines.kafka.progress import ProgressLost, ProgressTail
from pipelines.model.entries import AlignOrdered
from pipelines.model.progress import Flagging, Pausing
from pipelines.model.switch import AwaitMark, Free, Met, PastTheMark, Pause, Run, candidate_move

log = logging.getLogger("switchyard.driver")

_MARK_S = 0.05


class Alignment:
    """Carries out orders to align release `name`.

    `beat`: sends a heartbeat now. `may_pass`: whether the query may run past a goal that it has not reached.
    """

    def __init__(
        self, name: str, query: Query, orders: Orders, status: DriverStatus, beat: Callable[[], None], *, may_pass: bool
    ) -> None:
        self._name = name
        self._query = query
        self._orders = orders
        self._status = status
        self._beat = beat
        self._may_pass = may_pass
        self._missed: set[str] = set()

    def is_over(self, order: AlignOrdered) -> bool:
        """Whether nothing is left to do for `order`: its boundary was met, or missed, or there is no release to meet."""
        if order.other not in self._orders.registry.known.releases:
            return True
        last = self._query.sink.last
        met = last is not None and last.aligned is not None and last.aligned.op == order.id
        return met or order.id in self._missed

    def meet(self, order: AlignOrdered) -> None:
        """Pauses at a boundary, waits for the other release's mark and runs exactly to it. A void order ends it early.

        The newest progress record of each release decides each step, so it resumes where it was after a crash.
        """
        query = self._query
        self._status.state = "pausing"
        if query.active:
            by = query.sink.turnstile.hold()
            if by is not None:
                # at once: the other release may flag its boundary before this batch ends
                self._status.pausing = Pausing(op=order.id, by=by)
                self._beat()
            query.rest()
        query.catch_up()
        if self._may_pass:
            query.sink.turnstile.limit(None)
        if not query.sink.has_begun:
            log.warning("%s: no batch yet; it aligns after the first one", self._name)
            query.run_first(self._orders.check_newest)
        settings = self._orders.registry.settings
        try:
            with closing(ProgressTail(settings, order.other)) as tail, closing(HeartbeatTail(settings)) as beats:
                self._move_to_mark(order, tail, beats)
        except ProgressLost as error:
            # a loss of the other release must not end this one
            raise Unavailable(error.what, fix=error.fix) from error
        except PastTheMark as error:
            log.error("%s: %s", self._name, error)
            self._missed.add(order.id)

    def _move_to_mark(self, order: AlignOrdered, tail: ProgressTail, beats: HeartbeatTail) -> None:
        """Makes the moves of `candidate_move` until the mark is met or the order is no longer in force."""
        query = self._query
        word: Flagging | None = None
        while self._is_in_force(order):
            word = self._newest_word(beats, order) or word
            match candidate_move(order, query.sink.last, tail.newest, word):
                case Free():
                    return
                case Pause(op=op):
                    query.sink.announce(paused=op)
                    log.info("%s: paused at batch %s for %s", self._name, batch_number(query.sink.last), op)
                case AwaitMark():
                    self._status.state = "paused"
                    tail.poll(_MARK_S)
                case Run(steps=steps):
                    self._status.state = "aligning"
                    query.run_to(steps[0].to, self._orders.check_token)
                case Met():
                    query.sink.announce(aligned=order.id)
                    log.info("%s: aligned with %s at batch %s", self._name, order.other, batch_number(query.sink.last))
        log.info("%s: %s is over; it keeps running", self._name, order.id)

    def _newest_word(self, beats: HeartbeatTail, order: AlignOrdered) -> Flagging | None:
        """What the other driver said last about the boundary that it will flag for `order`; None: nothing new."""
        token = self._orders.registry.known.releases[order.other].token
        words = [b.flagging for b in beats.poll(0) if (b.release, b.token) == (order.other, token) and b.flagging]
        return next((word for word in reversed(words) if word.op == order.id), None)

    def _is_in_force(self, order: AlignOrdered) -> bool:
        self._orders.registry.poll(0)
        standing = self._orders.check().open_align(self._name)
        return standing is not None and standing.id == order.id
