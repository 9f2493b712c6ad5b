"""The watch after a promotion, and the alert when a run fails."""

from __future__ import annotations

from dataclasses import dataclass

from dagster import (
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunFailureSensorContext,
    RunRequest,
    RunsFilter,
    SensorEvaluationContext,
    SkipReason,
    run_failure_sensor,
    sensor,
)

from orchestration.defs.jobs import WatchConfig, watch_job
from orchestration.defs.names import APP_TAG, RELEASE_TAG
from orchestration.defs.resources import Alerts, Platform
from orchestration.operations.plans.kind import Kind
from orchestration.operations.supervising.alerts import RunFailed
from pipelines.errors import SwitchyardError
from pipelines.model.registry import RegistryState
from pipelines.model.text import visible

_INTERVAL_S = 15
_SWITCH_TAG = "switchyard/switch"
_FOR_S = WatchConfig.model_fields["for_s"].default


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A promotion to watch, for what is left of its time."""

    app: str
    release: str
    number: int
    left_s: float


def to_watch(state: RegistryState, now: int, for_s: float) -> list[Watch]:
    """Promotions younger than `for_s` seconds whose release is still live.

    A rollback is not watched, because the watch rolls back only once; nor is a first promotion, which has no release to
    go back to.
    """
    watches = []
    for entry in state.promoted.values():
        operation = state.known_operations.get(entry.op or "")
        if entry.switch.old is None or operation is None or operation.opened.name != Kind.PROMOTE:
            continue
        left_s = for_s - (now - entry.at_ms) / 1000
        if left_s > 0:
            watches.append(Watch(app=entry.alias, release=entry.switch.new, number=entry.switch.number, left_s=left_s))
    return watches


@sensor(
    job=watch_job,
    minimum_interval_seconds=_INTERVAL_S,
    default_status=DefaultSensorStatus.RUNNING,
    description="Watches each promotion for its first ten minutes, no matter who promoted: keeps checking, and rolls back, one time only, if a "
    "check fails.",
)
def watch_after_promotion(context: SensorEvaluationContext, platform: Platform) -> list[RunRequest] | SkipReason:
    try:
        with platform.open(context.log.info) as operations:
            state = operations.registry.state()
            watches = to_watch(state, operations.now_ms(), _FOR_S)
    except SwitchyardError as error:
        return SkipReason(visible(str(error), lines=True))
    if not watches:
        return SkipReason("no promotion of the last ten minutes is still live")
    return [
        RunRequest(
            run_key=_run_key(context.instance, watch),
            run_config={"ops": {"watch": {"config": {"release": watch.release, "for_s": watch.left_s}}}},
            tags={RELEASE_TAG: watch.release, APP_TAG: watch.app, _SWITCH_TAG: str(watch.number)},
        )
        for watch in watches
    ]


def _run_key(instance: DagsterInstance, watch: Watch) -> str:
    """A key per switch, so that Dagster starts one run for it; and another key if that run failed or died with Dagster."""
    failed = instance.get_runs_count(
        RunsFilter(
            job_name=watch_job.name,
            statuses=[DagsterRunStatus.FAILURE],
            tags={APP_TAG: watch.app, _SWITCH_TAG: str(watch.number)},
        )
    )
    return f"{watch.app} switch {watch.number}" + (f", after {failed} that failed" if failed else "")


@run_failure_sensor(
    default_status=DefaultSensorStatus.RUNNING,
    description="Alerts on every failed run: in the log, and at SWITCHYARD_ALERT_WEBHOOK if that is set.",
)
def failure_alert(context: RunFailureSensorContext, alerts: Alerts) -> None:
    run = context.dagster_run
    # the first failed step says why; the run itself only says that it failed
    steps = [event.step_failure_data.error for event in context.get_step_failure_events()]
    why = next((error.message.strip() for error in steps if error is not None), context.failure_event.message or "")
    alerts.send(RunFailed(job=run.job_name, run_id=run.run_id, release=run.tags.get(RELEASE_TAG), error=why))
