"""The driver: one process per release. `python -m pipelines.engine.driver stock-stats.v2`

It obeys the registry and answers on the release's progress topic; Dagster and the command line never talk to it.
Exit codes: 0 stopped at a boundary as wanted, 1 failed, 3 refused (another driver has the release).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from pipelines.engine.alignment import Alignment
from pipelines.engine.causes import cause, is_lost_contact, jvm_ended
from pipelines.engine.checkpoint import Checkpoint, fence
from pipelines.engine.code import code_path, load
from pipelines.engine.goal import Goal
from pipelines.engine.guard import checked
from pipelines.engine.heart import Heart
from pipelines.engine.history import all_at_once, by_time
from pipelines.engine.lease import take_lease
from pipelines.engine.member import GroupMember
from pipelines.engine.orders import Held, Orders, StopWanted
from pipelines.engine.outages import Outages, is_outage
from pipelines.engine.query import Query
from pipelines.engine.session import begin_jvm, build_session, end_session, jvm_exit_code, send_code
from pipelines.engine.sink import Destination, batch_number
from pipelines.engine.telemetry import DriverStatus, Telemetry, lag_probe
from pipelines.engine.watch import PartLost, Watch, unknown_ids
from pipelines.engine.writer import OutcomeUnknown, Superseded, Writer
from pipelines.errors import Refused, SwitchyardError, Unavailable
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.registry import Registry
from pipelines.kafka.sizes import sizes_of
from pipelines.logs import configure_driver
from pipelines.model.app import App
from pipelines.model.limits import Limits, Size, limits_of
from pipelines.model.parts import parts_of
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Flagging
from pipelines.model.registry import (
    AlignOrdered,
    LeaseEnded,
    MarkOrdered,
    RegistryState,
    Release,
    StateSet,
    TopicsKnown,
)
from pipelines.model.reset import batch_records
from pipelines.model.text import visible
from pipelines.private import keep_private
from pipelines.secrets import drop_holders
from pipelines.settings import Settings, get_settings

log = logging.getLogger("switchyard.driver")

# an input that kills a batch kills it again: more tries only delay the message
_TRIES = 3
_TAIL_S = 0.1
# between the end of its answers and its own: it runs its hooks
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
        signalled: threading.Event | None = None,
        let_go: Callable[[], None] = lambda: None,
    ) -> None:
        """`settle`: only brings Spark's log up to what Kafka has, wanted or not, and ends. `signalled`: tells it to stop.

        `let_go`: called when the query has ended for good, before the lease does, as another may have the checkpoint then.
        """
        self._let_go = let_go
        self._settle = settle
        self._settings = settings
        self._name = name
        self._registry = Registry(settings, actor=f"driver {settings.host}:{os.getpid()}")
        self._signalled = signalled or threading.Event()
        self._status = DriverStatus()
        self._query: Query | None = None
        self._tries: dict[int, int] = {}
        self._outages = Outages(settings, name, self._status, self._signalled)
        self._restarted_at = 0.0
        self._path: Path | None = None
        # 1. the lease, before anything is initialised
        self._token = take_lease(self._registry, name, force=force).token
        log.info("%s: lease token %d", name, self._token)
        self._orders = Orders(self._registry, name, self._token, settle=settle, signalled=self._signalled)
        self._telemetry = Telemetry(settings, name, self._token, self._status)
        self._heart = Heart(settings, self._telemetry.heartbeat)

    # -- life

    def run(self) -> int:
        """Runs the release. Returns the process's exit code."""
        try:
            self._work()
            self._to_rest("stopped")
            return 0
        except Superseded as error:
            log.error("%s", error)
            self._status.state = "superseded"
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
            self._end_lease()
            return told.exit_code if isinstance(told, SwitchyardError) else 1
        finally:
            if self._orders.watch is not None:
                self._orders.watch.close()
            self._heart.close()

    def _work(self) -> None:
        """Boots, and runs until it is told to stop."""
        try:
            self._boot()
            if self._settle:
                self._need_query().catch_up()
            else:
                self._loop()
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
        """Enters that the release has failed by it, so that nobody starts it again and again; without a registry it can't."""
        if lost.registry:
            return
        # whoever has taken the release over has its parts, too
        self._orders.check_token()
        self._orders.enter(StateSet(release=self._name, state="failed"), f"{lost.what}; {lost.fix}")

    def _boot(self) -> None:
        release = self._orders.release()
        spec, start = release.spec, release.start
        if start is None:
            raise SwitchyardError(f"{self._name} has no generation", fix="stage it again")
        release = self._begin_watch(release)
        code = code_path(self._settings, spec.code_digest)
        app, _ = load(code, spec.code_digest, spec.app, (spec.module,), of=self._name)
        destination = _destination(self._token, release, app, start)
        known = newest_progress(self._settings, self._name)
        throttled = batch_records(release.under, known) or self._settings.max_records_per_batch
        seeded = destination.seed is not None and destination.seed.boundary.batch_id >= 0
        begun = known is not None and known.generation == release.generation and known.boundary.batch_id >= 0
        # 2. the checkpoint's fence
        self._go_when_understood()
        path = fence(self._settings, self._name, release.generation, self._token, expected=seeded or begun)
        self._path = path
        stands = known.boundary.position if known is not None and begun else start
        writer = Writer(self._settings, self._name, destination.result_topic, spec.partitions)
        query = Query(
            self._settings, app, spec, destination, Checkpoint(path, destination.inputs), writer, self._orders.admit
        )
        limits = self._prepare(query, release, app, stands, throttled)
        if limits.total < throttled:
            log.info("%s: batches of at most %d records, by the size of its input's", self._name, limits.total)
        self._query = query
        self._telemetry.watch_query(query, limits.total)
        self._alignment = Alignment(
            self._name, query, self._orders, self._status, self._heart.beat, may_pass=self._goal.may_pass
        )
        # 4. the group's member
        self._member = GroupMember(self._settings, self._name, sorted(set(destination.inputs.values())))
        partitions = {n: i.partitions for n, i in spec.inputs.items()}
        client = self._registry.cluster.client
        self._telemetry.watch_lag(
            lag_probe(self._settings, client, lambda: query.sink.position, destination.inputs, partitions)
        )
        assert self._orders.watch is not None
        if (lost := self._orders.watch.look()) is not None:
            raise lost
        self._orders.watch.start()
        log.info("%s: generation %d at batch %s", self._name, release.generation, batch_number(query.sink.last))

    def _prepare(self, query: Query, release: Release, app: App, stands: SourcePosition, at_most: int) -> Limits:
        """Starts Spark, and makes what it is to run. `stands`: from where the input is read. `at_most`: records in a batch.

        The sizes of the input are read and the sink connects in the meantime: Spark takes longer than both.
        """
        inputs, digest = query.sink.destination.inputs, release.spec.code_digest
        with ThreadPoolExecutor(2, "boot") as pool:
            sizes = pool.submit(self._sizes, stands.by_topic(inputs))
            connected = pool.submit(query.sink.connect)
            spark = build_session(self._settings, self._name)
            limits = limits_of(
                {name: sizes.result().get(topic) for name, topic in inputs.items()},
                batch_bytes=self._settings.max_bytes_per_batch,
                at_most=at_most,
                # a portion of history is bounded as a whole
                together=app.watermark is not None,
            )
            # 3. frozen code, in the workers too
            send_code(spark, code_path(self._settings, digest), digest, self._name)
            self._telemetry.watch_jvm(spark)
            self._goal = Goal(
                self._name, query, self._orders, self._status, begun=release.under, batch_records=limits.total
            )
            portion = (
                all_at_once
                if app.watermark is None
                else by_time(self._settings, inputs, limits.total, self._goal.free_until)
            )
            query.prepare(spark, limits, portion)
            connected.result()
        return limits

    def _begin_watch(self, release: Release) -> Release:
        """Raises PartLost where a topic of the release is gone or another one. Returns it with the ids of all its topics."""
        self._orders.watch = self._new_watch(release)
        if (lost := self._orders.watch.look()) is not None:
            raise lost
        more = unknown_ids(release, self._registry.cluster.topic_ids(parts_of(release)))
        if more is None:
            return release
        # what an older version has staged, or this one before its topics were made
        self._orders.enter(more)
        release = self._orders.release()
        self._orders.watch = self._new_watch(release)
        return release

    def _new_watch(self, release: Release) -> Watch:
        return Watch(
            self._registry.cluster, release, stands=self._stands_at, registry_id=self._registry.topic_id, checkpoint=self._checkpoint_path, alarm=self._alarm, made=self._topics_made
        )  # fmt: skip

    def _stands_at(self) -> tuple[SourcePosition, bool]:
        """Where the release stands, and whether that can't be said: a batch is under way, which may have read on, or it boots."""
        if self._query is None:
            return SourcePosition(sources={}), True
        sink = self._query.sink
        busy = sink.in_batch is not None
        return sink.position, busy

    def _checkpoint_path(self) -> Path | None:
        """The checkpoint, once a batch was planned in it; its folder's name is another one when a newer driver has it."""
        query = self._query
        return self._path if query is not None and query.sink.begun else None

    def _alarm(self, lost: PartLost) -> None:
        """On the watch's thread: nothing may be committed from here on, and whoever listens hears it at once."""
        log.error("%s: %s", self._name, lost)
        self._status.error = f"{lost.what}; {lost.fix}"
        if self._query is not None:
            self._query.sink.halt(lost)
        self._heart.beat()

    def _topics_made(self, known: TopicsKnown) -> None:
        with Registry(self._settings, actor=self._registry.actor) as registry:
            self._orders.enter(known, "a topic was gone, and was made again, empty", by=registry)

    def _sizes(self, start: Mapping[str, Mapping[int, int]]) -> dict[str, Size | None]:
        """What can be known of the inputs; nothing, where Kafka doesn't tell: what is wrong there, Spark's query finds."""
        try:
            return sizes_of(self._settings, start, client=self._registry.cluster.client)
        except SwitchyardError as error:
            log.warning("%s: how large its records are isn't known: %s", self._name, error.what)
            return {}

    def _loop(self) -> None:
        query = self._need_query()
        while True:
            state = self._go_when_understood()
            query.sink.turnstile.limit(self._goal.free_until())
            try:
                if state.standing_align(self._name) is None:
                    self._start(query)
                self._watch_over(query)
            except Held:
                query.pause()

    def _go_when_understood(self) -> RegistryState:
        """Waits while the registry has an entry about this release that must be understood and can't be; says so.

        It may say who writes, or where this release has to stop: no further batch is committed before that entry is
        repaired, or another driver has taken over. Raises Superseded and StopWanted as `Orders.check` does.
        """
        told: str | None = None
        before = self._status.state
        while True:
            try:
                state = self._orders.check()
                if told is not None:
                    self._status.state, self._status.error = before, None
                    log.info("%s: goes on", self._name)
                return state
            except Held as held:
                if told != str(held):
                    told = self._status.error = str(held)
                    self._status.state = "held"
                    log.error("%s is held: %s", self._name, told)
                    self._heart.beat()
                self._registry.poll(_TAIL_S)

    def _watch_over(self, query: Query) -> None:
        """Obeys the registry, turn by turn."""
        while True:
            self._registry.poll(_TAIL_S)
            state = self._orders.check()
            mark = state.standing_mark(self._name)
            query.sink.flag_for(mark)
            self._say_ahead(query.sink.foreseen())
            query.sink.turnstile.pace(self._pace_s(state, mark))
            order = state.standing_align(self._name)
            if order is not None and not self._alignment.is_over(order):
                self._meet(query, order)
                continue
            if self._status.error and query.sink.failure is None and query.sink.finished_at > self._restarted_at:
                # a batch has ended well since: that trouble is over
                self._status.error = None
                self._outages.are_over()
            wanted = self._goal.ahead
            query.sink.turnstile.limit(self._goal.free_until())
            if wanted is not None and self._goal.is_next(wanted):
                self._by_hand(query, f"on the way to the boundary of {wanted.op}", partial(self._goal.reach, wanted))
            elif not query.active:
                self._recover(query)
            elif mark is not None and time.time() - query.sink.finished_at > 2 * self._settings.trigger_s:
                self._quietly(query.sink.flag_idle)

    def _pace_s(self, state: RegistryState, mark: MarkOrdered | None) -> float:
        """The least time from one batch's begin to the next."""
        if mark is not None and not self._need_query().sink.has_flagged(mark):
            # followers wait for that boundary, or will
            return 0.0
        waits = state.releases[self._name].state in ("ready", "standby")
        return self._settings.standby_trigger_s if waits else self._settings.trigger_s

    def _say_ahead(self, word: Flagging | None) -> None:
        """At once, as another release waits to run to that boundary."""
        if word != self._status.flagging:
            self._status.flagging = word
            if word is not None:
                self._heart.beat()

    def _meet(self, query: Query, order: AlignOrdered) -> None:
        """Aligns and goes on."""

        def align() -> None:
            try:
                self._alignment.meet(order)
            finally:
                self._status.pausing = None

        self._by_hand(query, f"while meeting {order.other}", align)

    def _by_hand(self, query: Query, what: str, work: Callable[[], None]) -> None:
        """Does `work` on the query, which doesn't run by itself meanwhile, and goes on.

        Trouble is handled as any other, and then it is tried again.
        """
        try:
            work()
        except (KafkaException, OutcomeUnknown, Unavailable) as error:
            query.pause()
            self._wait_out(what, error)
            self._orders.check()
        except (Superseded, PartLost, StopWanted, Held):
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
        except (KafkaException, OutcomeUnknown, Unavailable) as error:
            # no longer at rest, if it was: it is started again as one that has stopped
            query.pause()
            self._wait_out("before it goes on", error)
        except (Superseded, PartLost, StopWanted, Held):
            raise
        except Exception:
            # what the query has failed with is taken up at the next turn
            if query.error() is None:
                raise
        else:
            self._status.state = "running"

    def _to_rest(self, state: str) -> None:
        if self._query is not None:
            self._query.pause()
            self._member.close()
        self._status.state = state
        self._end_spark()
        self._end_lease()
        log.info(
            "%s: %s at batch %s", self._name, state, batch_number(self._query.sink.last) if self._query else "none"
        )

    def _end_spark(self) -> None:
        self._telemetry.jvm_ends()
        self._let_go()

    def _jvm_lost(self, error: Exception) -> SwitchyardError | None:
        """What is to be said of an error by which the JVM doesn't answer any more; None: it does, or has not ended."""
        code = jvm_exit_code(_JVM_LOST_S) if is_lost_contact(error) else None
        return None if code is None else jvm_ended(self._name, code, self._settings)

    def _end_lease(self) -> None:
        try:
            self._orders.enter(LeaseEnded(release=self._name, token=self._token))
        except SwitchyardError:
            log.exception("%s: the lease's end could not be written; it expires", self._name)

    # -- trouble

    def _recover(self, query: Query) -> None:
        """Starts the query again after an error, or gives up: three tries of one batch, no limit for an outage.

        Not started while an order to align stands that is not met: a batch would go past what was promised.
        """
        error = query.error()
        if error is None:
            self._start(query)
            return
        if isinstance(error, Superseded):
            raise error
        if (lost := self._found_lost()) is not None:
            raise lost
        batch = (
            query.sink.failure[0]
            if query.sink.failure
            else (query.sink.last.boundary.batch_id + 1 if query.sink.last else 0)
        )
        if is_outage(error):
            self._wait_out(f"batch {batch}", error)
        else:
            # workers refuse code that was changed: then neither the batch nor the app is at fault
            spec = self._registry.known.releases[self._name].spec
            checked(code_path(self._settings, spec.code_digest), spec.code_digest, self._name)
            self._tries[batch] = self._tries.get(batch, 0) + 1
            self._status.error = f"{self._name}, batch {batch} ({self._range(query, batch)}): {cause(error)}"
            log.error("try %d of %d: %s", self._tries[batch], _TRIES, self._status.error)
            if self._tries[batch] >= _TRIES:
                reason = self._status.error
                self._orders.enter(StateSet(release=self._name, state="failed"), reason)
                raise SwitchyardError(
                    reason,
                    fix=f"`switchyard bisect {self._name}` names the record; leave it out, or mend the app and stage a new version",
                )
        self._registry.poll(0)
        order = self._orders.check().standing_align(self._name)
        self._restarted_at = time.time()
        if order is None or self._alignment.is_over(order):
            self._start(query)

    def _found_lost(self) -> PartLost | None:
        """What is lost, where it is that which something has failed by: Spark and Kafka's clients say so in many ways."""
        try:
            return self._orders.watch.look() if self._orders.watch is not None else None
        except SwitchyardError as error:
            log.warning("%s: whether its parts are there isn't known: %s", self._name, error.what)
            return None

    def _wait_out(self, what: str, error: BaseException) -> None:
        """Waits for the end of an outage. The next batch connects anew."""
        self._outages.wait_out(what, error)
        self._need_query().sink.disconnect()

    def _range(self, query: Query, batch: int) -> str:
        try:
            return query.describe_range(batch)
        except SwitchyardError:
            return "its range is not planned yet"

    def _quietly(self, call: Callable[[], object]) -> None:
        """A marker that can't be written now is written at the next turn; being superseded is not quiet."""
        try:
            call()
        except (KafkaException, OutcomeUnknown, Unavailable) as error:
            log.warning("%s: %s", self._name, error)

    def _need_query(self) -> Query:
        if self._query is None:
            raise SwitchyardError(f"{self._name} has not booted")
        return self._query


def _destination(token: int, release: Release, app: App, start: SourcePosition) -> Destination:
    return Destination(
        release=release.name,
        generation=release.generation,
        token=token,
        result_topic=release.result_topic,
        partitions=release.spec.partitions,
        inputs={name: source.topic for name, source in app.inputs.items()},
        start=start,
        watermarked=app.watermark is not None,
        processed=release.under.processed if release.under else (),
        seed=release.under.seed if release.under else None,
    )


def main(arguments: list[str] | None = None) -> int:
    keep_private()
    parser = argparse.ArgumentParser(
        prog="pipelines.engine.driver", description="Runs one release until it is told to stop."
    )
    parser.add_argument("release", help="as in stock-stats.v2")
    parser.add_argument("--force", action="store_true", help="take the lease from a holder that still lives")
    parser.add_argument("--settle", action="store_true", help="only bring Spark's log up to what Kafka has, and end")
    options = parser.parse_args(arguments)
    # until the settings say otherwise
    configure_driver("text", options.release)
    # it tells of every call of the sink
    logging.getLogger("py4j").setLevel(logging.WARNING)
    signalled = threading.Event()
    # the terminal's Ctrl-C reaches the group; stopping is an order, not an accident
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: signalled.set())
    try:
        settings = get_settings()
        configure_driver(settings.log_format, options.release)
        # what an app sees from its first import on
        drop_holders(os.environ)
        os.environ["SWITCHYARD_RELEASE"] = options.release
        # it takes as long as all that comes before it is needed
        begin_jvm(settings)
        driver = Driver(
            settings,
            options.release,
            force=options.force,
            settle=options.settle,
            signalled=signalled,
            let_go=partial(end_session, settings.jvm_end_timeout_s),
        )
        code = driver.run()
    except SwitchyardError as error:
        log.error("%s", error)
        code = error.exit_code
    except Exception:
        # by the log, which shows what the error has of a record as text
        log.exception("the driver of %s fails", visible(options.release))
        code = 1
    sys.stdout.flush()
    # Spark's and librdkafka's threads may not keep a driver alive that has given up its lease
    os._exit(code)


if __name__ == "__main__":
    main()
