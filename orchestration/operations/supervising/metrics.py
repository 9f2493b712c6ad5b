"""What `status` shows, as metrics. A collector of prometheus-client reads them on request.

Names and units follow OpenMetrics: seconds and bytes, and `_total` for counters. An unknown value is left out, not
shown as 0; an alert on `absent` or on `switchyard_up` catches that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Protocol, get_args

from confluent_kafka import KafkaException
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)
from prometheus_client.registry import Collector

from orchestration.operations.context import Context, open_context
from orchestration.operations.supervising.overview import ReleaseStatus, statuses_of
from pipelines.errors import Refused, SwitchyardError
from pipelines.model.entries import ReleaseState
from pipelines.model.names import progress_topic
from pipelines.model.parts import AnotherRegistry
from pipelines.model.progress import Counts, Heartbeat, Progress
from pipelines.model.registry import RegistryState
from pipelines.settings import Settings

log = logging.getLogger(__name__)

# Prometheus gives up after 10 s by default; the answer must come before that, even if it is only `switchyard_up 0`
TIMEOUT_S = 8.0
STATES: tuple[str, ...] = get_args(ReleaseState)
_RELEASE = ("app", "release")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one look at the registry, the heartbeats and the progress topics found. Times in milliseconds since the
    epoch.

    `totals`: release -> rows since its generation started, for each release that has read any. `heard_ms`: release ->
    time of its driver's last heartbeat, for each release that should run. `at_ms`: when this was read.
    """

    state: RegistryState
    found: Sequence[ReleaseStatus]
    totals: Mapping[str, Counts] = field(default_factory=dict)
    heard_ms: Mapping[str, int] = field(default_factory=dict)
    at_ms: int


class Reader(Protocol):
    """Reads, and closes what it reads with."""

    def read(self) -> Observation:
        """Raises SwitchyardError or KafkaException if the broker does not answer."""

    def close(self) -> None: ...


class KafkaReader:
    """Reads as `status` does, but writes nothing: it does not end operations past their deadline.

    Reads the registry on from the last time. Use it from one thread only.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._context: Context | None = None
        # the progress of releases that nobody runs, by generation and lease: no more is written under these
        self._at_rest: dict[str, tuple[tuple[int, int], Progress | None]] = {}
        # kept for longer than the window of heartbeats, because an alert waits some time before it fires
        self._heard_ms: dict[str, int] = {}

    def read(self) -> Observation:
        if self._context is None:
            self._context = open_context(self._settings, actor="metrics")
        try:
            state = self._context.registry.state(snapshots=False)
            found = [each for each in statuses_of(self._context, state, parts=False) if each.release.state != "retired"]
            totals, at_ms = self._totals(self._context, found), self._context.now_ms()
        except Exception as error:
            self.close()
            if isinstance(error, AnotherRegistry):
                # these belong to the old registry
                self._at_rest, self._heard_ms = {}, {}
            raise
        self._heard_ms.update({each.release.name: each.beat.at_ms for each in found if each.beat is not None})
        wanted = [each.release.name for each in found if each.beat is not None or each.release.wanted == "running"]
        heard = {name: self._heard_ms[name] for name in wanted if name in self._heard_ms}
        return Observation(state=state, found=found, totals=totals, heard_ms=heard, at_ms=at_ms)

    def close(self) -> None:
        """Closes its connection; the next read opens another."""
        if self._context is not None:
            self._context.registry.close()
            self._context = None

    def _totals(self, context: Context, found: Sequence[ReleaseStatus]) -> dict[str, Counts]:
        """Release -> its totals, from the driver's heartbeat or, without a driver, from the newest progress record."""
        totals = {e.release.name: e.beat.total for e in found if e.beat is not None and e.beat.batch_id >= 0}
        others = [each for each in found if each.release.name not in totals]
        unread = [each for each in others if self._known(each) is None]
        # a read of a deleted topic would wait until its time-out, and must not hide the other releases
        there = context.cluster.topic_names() if unread else set()
        for each in unread:
            name = each.release.name
            progress = _readable(context, name) if progress_topic(name) in there else None
            self._at_rest[name] = (each.release.generation, each.release.token), progress
        for each in others:
            progress = self._at_rest[each.release.name][1]
            if progress is not None and progress.generation == each.release.generation:
                totals[each.release.name] = progress.total
        return totals

    def _known(self, each: ReleaseStatus) -> Progress | None:
        """The last progress record of a stopped release, if none can have been written since it was read."""
        under, progress = self._at_rest.get(each.release.name, (None, None))
        same = under == (each.release.generation, each.release.token)
        return progress if same and each.holder is None else None


def _readable(context: Context, release: str) -> Progress | None:
    """The newest progress record; None if it can't be read, which must not hide the other releases."""
    try:
        return context.progress(release)
    except Refused as error:
        log.warning("the row counts of %s are unknown: %s", release, error.what)
        return None


class ReleaseCollector(Collector):
    """Metrics of every release that is not retired, at the time of collection.

    A collection takes at most `timeout_s` seconds. If reading takes longer, `switchyard_up` is 0, the reading
    continues, and the next collection waits for it. Collecting never raises. One thread does all readings.
    """

    def __init__(self, reader: Reader, *, timeout_s: float = TIMEOUT_S) -> None:
        self._reader = reader
        self._timeout_s = timeout_s
        self._pool = ThreadPoolExecutor(1, "metrics")
        self._lock = threading.Lock()
        self._under_way: Future[Observation] | None = None
        self._failing = False

    def describe(self) -> Iterable[Metric]:
        """The names only, so that registering contacts no broker."""
        return [*_health(0, 0.0), *families(None)]

    def collect(self) -> Iterator[Metric]:
        began_s = time.monotonic()
        observation = self._observe()
        found: list[Metric] = []
        try:
            found = families(observation) if observation is not None else []
        except Exception as error:
            observation = None
            self._trouble(f"{type(error).__name__}: {error}", error)
        yield from _health(int(observation is not None), time.monotonic() - began_s)
        yield from found

    def close(self) -> None:
        """Ends the readings. Waits for the one under way, at most as long as Kafka's requests take."""
        self._pool.submit(self._reader.close)
        self._pool.shutdown()

    def _observe(self) -> Observation | None:
        with self._lock:
            # a reading that ended after its collection gave up is out of date, so a new one starts
            if self._under_way is None or self._under_way.done():
                self._under_way = self._pool.submit(self._reader.read)
            asked = self._under_way
        try:
            found = asked.result(self._timeout_s)
        except TimeoutError:
            self._trouble(f"reading took longer than {self._timeout_s:g} s")
        except (SwitchyardError, KafkaException) as error:
            self._trouble(error.what if isinstance(error, SwitchyardError) else str(error))
        except Exception as error:
            # a bug; even then the endpoint must answer
            self._trouble(f"{type(error).__name__}: {error}", error)
        else:
            if self._failing:
                self._failing = False
                log.warning("the releases are known again")
            return found
        return None

    def _trouble(self, why: str, error: Exception | None = None) -> None:
        """Logs trouble once, until it is over."""
        if not self._failing:
            log.warning("the releases are unknown: %s", why, exc_info=error)
        self._failing = True


def _health(up: int, took_s: float) -> list[Metric]:
    """The metrics that are always there."""
    built = InfoMetricFamily("switchyard_build", "Version of the exporter.")
    built.add_metric((), {"version": version("switchyard")})
    return [
        GaugeMetricFamily("switchyard_up", "Whether the broker answered and the registry could be read.", value=up),
        GaugeMetricFamily(
            "switchyard_scrape_duration_seconds", "How long the reading took.", value=took_s, unit="seconds"
        ),
        built,
    ]


def families(observation: Observation | None) -> list[Metric]:
    """The metrics of one observation; for None, only their names."""
    return [*_registry_families(observation), *_apps(observation), *_driver_families(observation)]


def _registry_families(observation: Observation | None) -> list[Metric]:
    """What the registry says of releases and operations."""
    states = StateSetMetricFamily("switchyard_release_state", "State of the release.", labels=_RELEASE)
    wanted = _gauge("switchyard_release_wanted_running", "Whether an operator wants it to run.")
    running = _gauge("switchyard_release_running", "Whether a process runs it, or boots for it.")
    live = _gauge("switchyard_release_live", "Whether the app's consumers follow it.")
    generation = _gauge("switchyard_release_generation", "Number of the generation under way; a reset starts the next.")
    starts = _counter("switchyard_release_driver_starts", "Leases taken: by drivers that started, and by resets.")
    for each in observation.found if observation else ():
        labels, release = (each.release.spec.app, each.release.name), each.release
        states.add_metric(labels, {state: state == release.state for state in STATES})
        wanted.add_metric(labels, int(release.wanted == "running"))
        running.add_metric(labels, int(each.holder is not None))
        live.add_metric(labels, int(each.live))
        generation.add_metric(labels, release.generation)
        starts.add_metric(labels, release.token)
    opened = GaugeMetricFamily("switchyard_operations_open", "Operations under way.")
    overdue = GaugeMetricFamily("switchyard_operations_overdue", "Open operations that are past their deadline.")
    unread = GaugeMetricFamily("switchyard_registry_unread_entries", "Registry entries that this version can't read.")
    holding = GaugeMetricFamily(
        "switchyard_registry_holding_entries", "Unread registry entries that hold the releases they name."
    )
    if observation:
        unread.add_metric((), len(observation.state.unread) + observation.state.unread_before)
        holding.add_metric((), sum(each.must for each in observation.state.unread))
        under_way = [each.opened for each in observation.state.operations.values() if each.closed is None]
        opened.add_metric((), len(under_way))
        overdue.add_metric((), sum(each.deadline_ms < observation.at_ms for each in under_way))
    return [states, wanted, running, live, generation, starts, opened, overdue, unread, holding]


def _apps(observation: Observation | None) -> list[Metric]:
    """What consumers of each app follow."""
    switches = CounterMetricFamily(
        "switchyard_app_switches", "Links of the chain that consumers follow.", labels=("app",)
    )
    followers = GaugeMetricFamily("switchyard_app_followers", "Registered consumer groups.", labels=("app",))
    last = GaugeMetricFamily(
        "switchyard_app_last_switch_timestamp_seconds",
        "When consumers were last moved.",
        labels=("app",),
        unit="seconds",
    )
    state = observation.state if observation else RegistryState()
    for app, chain in state.chains.items():
        switches.add_metric((app,), len(chain))
        followers.add_metric((app,), len(state.followers.get(app, ())))
    for app, moved in state.promoted.items():
        last.add_metric((app,), moved.at_ms / 1000)
    return [switches, followers, last]


# name, help, unit, value from a heartbeat (None: unknown)
_BEAT: tuple[tuple[str, str, str, Callable[[Heartbeat], float | None]], ...] = (
    ("lag_records", "Records between the committed position and the end of the input.", "records",
     lambda b: b.lag_records),
    ("unread_records", "Records that were there when the last batch was planned and that it did not read.", "records",
     lambda b: b.behind_records),
    ("input_records_per_second", "Rate at which input records arrive.", "", lambda b: b.input_records_per_s),
    ("processed_records_per_second", "Rate at which records are processed.", "", lambda b: b.processed_records_per_s),
    ("batch_duration_seconds", "How long the last batch took.", "seconds", lambda b: b.batch_ms / 1000),
    ("watermark_timestamp_seconds", "The watermark of the last batch, as event time.", "seconds",
     lambda b: None if b.watermark_ms is None else b.watermark_ms / 1000),
    ("resident_memory_bytes", "Memory of the driver and its JVM.", "bytes", lambda b: b.rss_bytes or None),
    ("heap_used_bytes", "Heap that the JVM uses.", "bytes", lambda b: b.heap_used_bytes or None),
    ("heap_max_bytes", "Heap that the JVM may use.", "bytes", lambda b: b.heap_max_bytes or None),
    ("copies_failing_seconds", "Time since copies of the checkpoint to the bucket have failed; 0 if they do not.",
     "seconds", lambda b: b.copies_fail_s or 0),
    ("driver_error", "Whether the driver reports trouble.", "", lambda b: int(b.error is not None)),
)  # fmt: skip
_TOTALS: tuple[tuple[str, str, Callable[[Counts], int]], ...] = (
    ("input_records", "Records read since the generation started.", lambda c: c.rows_in),
    ("result_records", "Result records written since the generation started.", lambda c: c.rows_out),
    ("late_records", "Rows dropped as late since the generation started.", lambda c: c.late_dropped),
    ("dead_letters", "Records set aside as dead letters since the generation started.", lambda c: c.dead_lettered),
)


def _driver_families(observation: Observation | None) -> list[Metric]:
    """What the drivers report in heartbeats and progress records."""
    age = _gauge("switchyard_release_heartbeat_age_seconds", "Time since the driver's last heartbeat.", "seconds")
    said = {name: _gauge(f"switchyard_release_{name}", text, unit) for name, text, unit, _ in _BEAT}
    totals = {name: _counter(f"switchyard_release_{name}", text) for name, text, _ in _TOTALS}
    for each in observation.found if observation else ():
        labels, beat = (each.release.spec.app, each.release.name), each.beat
        heard_ms = observation.heard_ms.get(each.release.name) if observation else None
        if observation is not None and heard_ms is not None:
            age.add_metric(labels, max(0, observation.at_ms - heard_ms) / 1000)
        if beat is not None:
            for name, _, _, value_of in _BEAT:
                value = value_of(beat)
                if value is not None:
                    said[name].add_metric(labels, value)
        counts = observation.totals.get(each.release.name) if observation else None
        if counts is not None:
            for name, _, count_of in _TOTALS:
                totals[name].add_metric(labels, count_of(counts))
    return [age, *said.values(), *totals.values()]


def _gauge(name: str, text: str, unit: str = "") -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=_RELEASE, unit=unit)


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=_RELEASE)
