"""The driver: one process per release (`engine/start.py` starts it).

It obeys the registry and answers on the release's progress topic. Dagster and the commands never talk to it directly.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaException

from pipelines.engine.boot import Boot
from pipelines.engine.causes import cause, is_lost_contact, jvm_ended
from pipelines.engine.copier import Copier
from pipelines.engine.heart import Heart
from pipelines.engine.jvm_heap import REST_S, JvmHeap
from pipelines.engine.jvm_process import jvm_exit_code
from pipelines.engine.lease import take_lease
from pipelines.engine.orders import Held, Orders, StopWanted
from pipelines.engine.outages import Outages, is_outage
from pipelines.engine.pacing import pace_of
from pipelines.engine.query import PlanStands, Query
from pipelines.engine.telemetry import DriverStatus, Telemetry, batch_number
from pipelines.engine.tries import Tries
from pipelines.engine.watch import PartLost
from pipelines.engine.writer import Superseded
from pipelines.errors import Refused, SwitchyardError, Unavailable
from pipelines.kafka.registry import Registry
from pipelines.model.entries import AlignOrdered, LeaseEnded, MarkOrdered, StateSet
from pipelines.model.pace import Pace
from pipelines.model.progress import Flagging
from pipelines.model.registry import RegistryState
from pipelines.model.reset import batch_records
from pipelines.settings import Settings
from pipelines.signals import StopSignal

log = logging.getLogger("switchyard.driver")

_TAIL_S = 0.1
# without a batch for so long, a release is idle
_IDLE_S = 0.25
# a JVM that no longer answers still runs its shutdown hooks before it ends
_JVM_LOST_S = 5.0


class Driver:
    """Runs one release under one lease token until it is told to stop, fails, or is superseded."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        force: bool = False,
        settle: bool = False,
        signalled: StopSignal | None = None,
        stop_jvm: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes the lease. Raises as `take_lease` does.

        `settle`: only brings Spark's log up to what Kafka has, even for a stopped release, and ends. `signalled`: set to
        stop the driver. `stop_jvm`: called after the query has ended and before the lease ends, because then another
        driver may take the checkpoint.
        """
        self._stop_jvm = stop_jvm
        self._settle = settle
        self._settings = settings
        self._name = name
        self._registry = Registry(settings, actor=f"driver {settings.host}:{os.getpid()}")
        signalled = signalled or StopSignal()
        self._status = DriverStatus()
        self._query: Query | None = None
        self._copier: Copier | None = None
        self._heap = JvmHeap()
        self._outages = Outages(settings, name, self._status, signalled)
        self._restarted_at = 0.0
        # 1. the lease, before anything else is set up
        self._token = take_lease(self._registry, name, force=force).token
        log.info("%s: lease token %d", name, self._token)
        self._orders = Orders(self._registry, name, self._token, settle=settle, signalled=signalled)
        self._tries = Tries(settings, name, self._orders, self._status)
        self._telemetry = Telemetry(settings, name, self._token, self._status)
        self._heart = Heart(settings, self._telemetry.heartbeat)
        self._boot = Boot(
            settings, name, self._token, orders=self._orders, status=self._status, telemetry=self._telemetry, beat=self._heart.beat
        )  # fmt: skip

    # -- life

    def run(self) -> int:
        """Runs the release. Returns the process's exit code."""
        try:
            self._work()
            self._stop()
            return 0
        except Superseded as error:
            log.error("%s", error)
            self._status.state = "superseded"
            self._end_copies(last=False)
            self._end_spark()
            return Refused.exit_code
        except Exception as error:
            told = self._jvm_lost(error) or error
            self._status.error = cause(told) + (
                f"; {told.fix}" if isinstance(told, SwitchyardError) and told.fix else ""
            )
            self._status.state = "failed"
            log.error("%s failed: %s", self._name, self._status.error, exc_info=not isinstance(error, SwitchyardError))
            self._end_spark()
            self._end_copies(last=True)
            self._end_lease()
            return told.exit_code if isinstance(told, SwitchyardError) else 1
        finally:
            self._close_watch()
            self._heart.close()

    def _work(self) -> None:
        """Boots, then runs until it is told to stop."""
        try:
            booted = self._boot.run(self._await_understood)
            self._query, self._goal = booted.query, booted.goal
            self._alignment, self._member, self._copier = booted.alignment, booted.member, booted.copier
            if self._settle:
                booted.query.catch_up()
            else:
                self._loop(booted.query)
        except StopWanted:
            pass
        except Superseded:
            raise
        except Exception as error:
            lost = error if isinstance(error, PartLost) else self._found_lost()
            if lost is None:
                raise
            self._tell_lost(lost)
            raise lost from (error if error is not lost else None)

    def _tell_lost(self, lost: PartLost) -> None:
        """Enters the release as failed, so that no supervisor keeps starting it. Without a registry it can't."""
        if lost.registry:
            return
        # a driver that has taken over finds the loss itself
        self._orders.check_token()
        self._orders.enter(StateSet(release=self._name, state="failed"), f"{lost.what}; {lost.fix}")

    def _loop(self, query: Query) -> None:
        while True:
            state = self._await_understood()
            query.sink.turnstile.limit(self._goal.free_until())
            try:
                if state.open_align(self._name) is None:
                    self._start(query)
                self._watch_over(query)
            except Held:
                query.stop()

    def _await_understood(self) -> RegistryState:
        """Waits while the registry has an entry about this release that must be understood and can't be read.

        The entry may say who writes, or where this release must stop. So no batch is committed until the entry is repaired
        or another driver takes over. Raises Superseded, StopWanted and PartLost as `Orders.check` does.
        """
        told: str | None = None
        before = self._status.state
        while True:
            try:
                state = self._orders.check()
                if told is not None:
                    self._status.state, self._status.error = before, None
                    log.info("%s: no longer held", self._name)
                return state
            except Held as held:
                if told != str(held):
                    told = self._status.error = str(held)
                    self._status.state = "held"
                    log.error("%s is held: %s", self._name, told)
                    self._heart.beat()
                self._registry.poll(_TAIL_S)

    def _watch_over(self, query: Query) -> None:
        """Follows the registry's orders, turn by turn."""
        while True:
            self._registry.poll(_TAIL_S)
            state = self._orders.check()
            self._require_context()
            mark = state.open_mark(self._name)
            query.sink.marks.flag_for(mark)
            self._announce_flagging(query.sink.marks.foreseen())
            query.sink.turnstile.pace(self._pace(query, state, mark))
            self._heap.rest(self._is_idle(query, REST_S))
            order = state.open_align(self._name)
            if order is not None and not self._alignment.is_over(order):
                self._meet(query, order)
                continue
            if self._status.error and query.sink.failure is None and query.sink.finished_at > self._restarted_at:
                # a batch has succeeded since the error
                self._status.error = None
                self._outages.end()
            wanted = self._goal.ahead
            query.sink.turnstile.limit(self._goal.free_until())
            if wanted is not None and self._goal.is_next(wanted):
                self._then_start(query, f"on the way to the boundary of {wanted.op}", partial(self._goal.reach, wanted))
            elif not query.active:
                self._recover(query)
            elif mark is not None and self._is_idle(query, _IDLE_S):
                self._unless_outage(query.sink.flag_idle)

    def _pace(self, query: Query, state: RegistryState, mark: MarkOrdered | None) -> Pace:
        if mark is not None and not query.sink.marks.has_flagged(mark):
            # followers wait for that boundary, or will
            return Pace()
        release = state.releases[self._name]
        throttled = batch_records(release.under, query.sink.last) is not None
        return pace_of(self._settings, release.state, throttled=throttled)

    def _is_idle(self, query: Query, least_s: float) -> bool:
        """Whether no batch runs, nor has run for `least_s`, or for two triggers."""
        rested_s = time.time() - query.sink.finished_at
        return query.sink.in_batch is None and rested_s > max(least_s, 2 * self._settings.trigger_s)

    def _announce_flagging(self, word: Flagging | None) -> None:
        """Tells which boundary will be flagged, at once: another release waits to run to it."""
        if word != self._status.flagging:
            self._status.flagging = word
            if word is not None:
                self._heart.beat()

    def _meet(self, query: Query, order: AlignOrdered) -> None:
        """Aligns, then runs on."""

        def align() -> None:
            try:
                self._alignment.meet(order)
            finally:
                self._status.pausing = None

        self._then_start(query, f"while meeting {order.other}", align)

    def _then_start(self, query: Query, what: str, work: Callable[[], None]) -> None:
        """Does `work` on the query while it doesn't run by itself, then starts it again.

        An error is handled like that of a batch; the next turn does `work` again.
        """
        try:
            work()
        except (KafkaException, Unavailable) as error:
            query.stop()
            self._wait_out(query, what, error)
            self._orders.check()
        except (Superseded, PartLost, StopWanted, Held, PlanStands):
            raise
        except Exception:
            if query.error() is None:
                raise
            self._recover(query)
        else:
            self._start(query)

    def _start(self, query: Query) -> None:
        try:
            query.start()
        except (KafkaException, Unavailable) as error:
            # a query at rest can't be resumed after this: it is paused, then started again
            query.stop()
            self._wait_out(query, "before the query starts", error)
        except (Superseded, PartLost, StopWanted, Held):
            raise
        except Exception:
            # the next turn handles an error of the query itself
            if query.error() is None:
                raise
        else:
            if self._status.state != "running":
                self._status.state = "running"
                # whoever started it waits for this
                self._heart.beat()

    def _stop(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._member.close()
        self._status.state = "stopped"
        self._end_spark()
        self._end_copies(last=True)
        self._end_lease()
        log.info("%s: stopped at batch %s", self._name, batch_number(self._query.sink.last) if self._query else "none")

    def _end_spark(self) -> None:
        self._telemetry.jvm_ends()
        if self._settings.executors_elsewhere:
            from pipelines.engine.elsewhere import end_jvm

            end_jvm(self._settings, self._stop_jvm)
        else:
            self._stop_jvm()

    def _end_copies(self, *, last: bool) -> None:
        """Ends the copies of the checkpoint in the bucket. `last`: after a last one; nobody writes the checkpoint any more."""
        if self._copier is not None:
            self._copier.close(copy=last)

    def _jvm_lost(self, error: Exception) -> SwitchyardError | None:
        """The error to report if `error` means that the JVM has ended; None: it still runs."""
        code = jvm_exit_code(_JVM_LOST_S) if is_lost_contact(error) else None
        return None if code is None else jvm_ended(self._name, code, self._settings)

    def _close_watch(self) -> None:
        if self._orders.watch is not None:
            self._orders.watch.close()

    def _end_lease(self) -> None:
        # whoever waits for the end of the lease may delete the topics that the watch would create again
        self._close_watch()
        try:
            self._orders.enter(LeaseEnded(release=self._name, token=self._token))
        except SwitchyardError:
            log.exception("%s: the end of the lease could not be written; the lease will expire", self._name)

    # -- trouble

    def _recover(self, query: Query) -> None:
        """Starts the query again after an error, or gives up: three tries of one batch, no limit for an outage.

        While an order to align is not met yet, the query is not started: its next batch could go past the boundary where
        the releases are to meet.
        """
        error = query.error()
        if error is None:
            self._start(query)
            return
        if isinstance(error, Superseded):
            raise error
        self._require_context()
        if (lost := self._found_lost()) is not None:
            raise lost
        batch = (
            query.sink.failure[0]
            if query.sink.failure
            else (query.sink.last.boundary.batch_id + 1 if query.sink.last else 0)
        )
        if is_outage(error):
            self._wait_out(query, f"batch {batch}", error)
        else:
            self._tries.count(query, batch, error)
        self._registry.poll(0)
        order = self._orders.check().open_align(self._name)
        self._restarted_at = time.time()
        if order is None or self._alignment.is_over(order):
            self._start(query)

    def _require_context(self) -> None:
        """Raises ExecutorsLost if executors on other hosts were ended for good. Another driver gets new ones, and the batch
        under way is not at fault.
        """
        if self._settings.executors_elsewhere:
            from pipelines.engine.elsewhere import require_context

            require_context(self._settings, self._name)

    def _found_lost(self) -> PartLost | None:
        """The lost part that may explain an error: Spark and Kafka's clients report one loss in many ways."""
        try:
            return self._orders.watch.look() if self._orders.watch is not None else None
        except SwitchyardError as error:
            log.warning("%s: could not check whether its parts are there: %s", self._name, error.what)
            return None

    def _wait_out(self, query: Query, what: str, error: BaseException) -> None:
        """Waits until an outage is over. The next batch connects again."""
        # to a producer, a deleted topic looks like an outage
        missing = self._orders.watch.missing if self._orders.watch is not None else []
        self._outages.wait_out("; ".join([*missing, what]), error)
        query.sink.disconnect()

    def _unless_outage(self, call: Callable[[], object]) -> None:
        """Logs an outage only: the next turn tries again. Other errors are raised."""
        try:
            call()
        except (KafkaException, Unavailable) as error:
            log.warning("%s: %s", self._name, error)
