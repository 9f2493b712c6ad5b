"""The supervisor: starts releases that are down, keeps those that run, and tells Dagster how all are doing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunRequest,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)
from pydantic import Field, ValidationError

from orchestration.defs import report
from orchestration.defs.jobs import start_job
from orchestration.defs.names import APP_TAG, RELEASE_TAG, TOKEN_TAG, partitions_name, releases_of
from orchestration.defs.resources import Alerts, Platform, by_dagster
from orchestration.operations.context import Context
from orchestration.operations.supervising import decide as supervise
from orchestration.operations.supervising import turns as supervision
from orchestration.operations.supervising.overview import ReleaseStatus
from pipelines.errors import SwitchyardError
from pipelines.kafka.offsets import end_offsets, first_offsets
from pipelines.kafka.topics import topic_names
from pipelines.model.registry import RegistryState
from pipelines.model.text import visible

_INTERVAL_S = 10
# once a minute is enough for the UI's plots and freshness, and the event log is kept for a long time
TELL_EVERY_MS = 60_000
# a start run that takes longer has lost its worker. In the queue it may wait for longer
_START_RUN = timedelta(minutes=5)
_WAITING = [DagsterRunStatus.QUEUED, DagsterRunStatus.NOT_STARTED]
_BEGUN = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]

Event = AssetMaterialization | AssetObservation | AssetCheckEvaluation


class Memory(supervise.Memory):
    """What the sensor keeps from turn to turn, in its cursor. Times in milliseconds since the epoch.

    told: subject -> when it was last reported. switches: app -> newest reported switch. mirrored: subject -> time of
    the registry entry that was reported.
    """

    told: dict[str, int] = Field(default_factory=dict)
    switches: dict[str, int] = Field(default_factory=dict)
    mirrored: dict[str, int] = Field(default_factory=dict)

    @classmethod
    def of(cls, cursor: str | None) -> Memory:
        """The memory in a cursor; an empty memory if the cursor can't be read."""
        try:
            return cls.model_validate_json(cursor or "{}")
        except ValidationError:
            return cls()

    def due(self, subject: str, now: int) -> bool:
        """Whether `subject` may be reported again. If so, it counts as reported now."""
        if now - self.told.get(subject, 0) < TELL_EVERY_MS:
            return False
        self.told[subject] = now
        return True


def news(memory: Memory, found: Sequence[ReleaseStatus], state: RegistryState, now: int) -> list[Event]:
    """The events to report about releases: each at most once a minute, a switch at once.

    A driver that is not heard causes no event, so its asset becomes stale.
    """
    events: list[Event] = []
    for status in found:
        if status.beat is None or status.holder is None:
            continue
        if memory.due(status.release.name, now):
            events.append(report.running_event(status))
        app, switch = status.release.spec.app, state.live(status.release.spec.app)
        if not status.live or switch is None or status.health != "running":
            continue
        moved = memory.switches.get(app) != switch.number
        if memory.due(f"live/{app}", now) or moved:
            memory.switches[app] = switch.number
            events.append(report.live_event(status, switch))
    return events


def mirror(memory: Memory, found: Sequence[ReleaseStatus], apps: Iterable[str], *, first: bool) -> list[Event]:
    """Events for what was recorded outside Dagster, for example on a terminal: releases that became ready, and
    verdicts. Each once.

    In the `first` turn of a Dagster instance, also what another instance recorded before.
    """
    events: list[Event] = []
    known = set(apps)
    for status in found:
        release = status.release
        ready, verdict = release.ready, release.verdict
        if release.spec.app not in known:
            continue
        if (
            ready is not None
            and (first or not by_dagster(ready))
            and _new(memory, f"ready {release.name}", ready.at_ms)
        ):
            events.append(report.ready_event(release, status.beat))
        if (
            verdict is not None
            and release.spec.suites
            and (first or not by_dagster(verdict))
            and _new(memory, f"verdict {release.name}", verdict.at_ms)
        ):
            events += report.verdict_events(release, verdict)
    return events


def _new(memory: Memory, subject: str, at_ms: int) -> bool:
    if memory.mirrored.get(subject) == at_ms:
        return False
    memory.mirrored[subject] = at_ms
    return True


def supervisor_sensor(topics: Sequence[str], apps: Sequence[str]) -> SensorDefinition:
    """The sensor. `apps` have assets; other releases in the registry are supervised too."""

    @sensor(
        name="supervisor",
        job=start_job,
        minimum_interval_seconds=_INTERVAL_S,
        default_status=DefaultSensorStatus.RUNNING,
        description="Every 10 s: starts releases that should run and have no driver (with growing pauses), keeps those "
        "that run, replaces drivers that hang, sets a release to failed if its driver keeps dying, and ends operations past "
        "their deadline. Reports once a minute how all are doing.",
    )
    def supervisor(context: SensorEvaluationContext, platform: Platform, alerts: Alerts) -> SensorResult | SkipReason:
        try:
            with platform.open(context.log.info) as operations:
                return _turn(context, operations, alerts, topics, apps)
        except SwitchyardError as error:
            if context.cursor is not None:
                # only `silent` is reset: when Kafka answers again, drivers get time to be heard
                context.update_cursor(Memory.of(context.cursor).model_copy(update={"silent": {}}).model_dump_json())
            return SkipReason(visible(str(error), lines=True))

    return supervisor


def _turn(
    context: SensorEvaluationContext, operations: Context, alerts: Alerts, topics: Sequence[str], apps: Sequence[str]
) -> SensorResult:
    first, memory, now = context.cursor is None, Memory.of(context.cursor), operations.now_ms()
    # each start is a Dagster run of its own, which keeps the start's messages
    done = supervision.turn(
        operations,
        memory,
        alert=alerts.send,
        start=lambda _: None,
        elsewhere=starting(context.instance, operations.registry.state()),
        now=lambda: now,
    )
    found, state, names = done.found, done.state, done.started
    events = mirror(memory, found, apps, first=first)
    events += [e for e in news(memory, found, state, now) if e.asset_key.path[-1] in apps]
    events += _inputs(memory, operations, topics, now)
    return SensorResult(
        run_requests=[_start(name, memory.attempts[name]) for name in names],
        dynamic_partitions_requests=_partitions(context.instance, state, apps),
        asset_events=events,
        cursor=memory.model_dump_json(),
        skip_reason=None if names else SkipReason(_summary(found)),
    )


def _summary(found: Sequence[ReleaseStatus]) -> str:
    running = [s.release.name for s in found if s.holder is not None]
    down = [s.release.name for s in found if s.health == "down"]
    return f"running: {', '.join(running) or 'none'}" + (f"; waiting to start {', '.join(down)}" if down else "")


def starting(instance: DagsterInstance, state: RegistryState) -> set[str]:
    """Releases that a Dagster run is starting, or will start once the queue has room.

    A run whose driver has taken the lease starts nothing more. If its worker died with its host, it stays "started".
    """
    # a run is updated when it leaves the queue
    since = datetime.now(UTC) - _START_RUN
    waiting = instance.get_runs(RunsFilter(job_name=start_job.name, statuses=_WAITING))
    begun = instance.get_runs(RunsFilter(job_name=start_job.name, statuses=_BEGUN, updated_after=since))
    runs = [*waiting, *(run for run in begun if not _has_started(run, state))]
    return {run.tags[RELEASE_TAG] for run in runs if RELEASE_TAG in run.tags}


def _has_started(run: DagsterRun, state: RegistryState) -> bool:
    """Whether a driver has taken the lease since a run of `start` was about to start one."""
    of, _, before = run.tags.get(TOKEN_TAG, "").rpartition("/")
    release = state.releases.get(run.tags.get(RELEASE_TAG, ""))
    return of == run.run_id and release is not None and int(before) < release.token


def _start(name: str, attempt: tuple[int, int]) -> RunRequest:
    count, at_ms = attempt
    return RunRequest(
        run_key=f"start {name} {at_ms}",
        run_config={"ops": {"start": {"config": {"release": name, "execute": True}}}},
        tags={RELEASE_TAG: name, APP_TAG: name.rsplit(".v", 1)[0], "switchyard/attempt": str(count)},
    )


def _partitions(
    instance: DagsterInstance, state: RegistryState, apps: Iterable[str]
) -> list[AddDynamicPartitionsRequest]:
    """Requests that add the releases which are not partitions yet."""
    requests = []
    for app in apps:
        there = set(instance.get_dynamic_partitions(partitions_name(app)))
        new = [r.name for r in state.of_app(app) if r.name not in there]
        if new:
            requests.append(releases_of(app).build_add_request(new))
    return requests


def _inputs(memory: Memory, operations: Context, topics: Sequence[str], now: int) -> list[Event]:
    if not memory.due("inputs", now):
        return []
    settings = operations.settings
    there = sorted(set(topics) & topic_names(settings))
    if not there:
        return []
    first, end = first_offsets(settings, there), end_offsets(settings, there)
    return [report.input_event(topic, first[topic], end[topic]) for topic in there]
