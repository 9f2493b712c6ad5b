"""Schedules: reprocessing, quality checks, refreshing diffs, and the janitor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dagster import (
    DefaultScheduleStatus,
    JobDefinition,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SkipReason,
    schedule,
)

from orchestration.defs.jobs import janitor_job, quality_job, refresh_job, reprocess_job
from orchestration.defs.names import APP_TAG, name_of
from orchestration.defs.resources import Platform
from orchestration.operations.context import Context
from orchestration.operations.lifecycle import live_release
from orchestration.operations.planning.clean import to_clean
from orchestration.operations.procedures.refresh import to_refresh
from pipelines.errors import SwitchyardError
from pipelines.model.app import App
from pipelines.model.registry import RegistryState
from pipelines.model.switch import expired
from pipelines.model.text import visible

# Sunday night, UTC
_REPROCESS_CRON = "0 3 * * 0"
_QUALITY_CRON = "17 * * * *"
# at another minute than the checks
_REFRESH_CRON = "47 * * * *"
_JANITOR_CRON = "*/5 * * * *"


def reprocessing_schedules(apps: Sequence[App]) -> list[ScheduleDefinition]:
    """One schedule per app. Off until someone turns it on, because a reprocess reads the whole history."""
    return [_reprocessing(app.name) for app in apps]


def why_not(state: RegistryState, app: str) -> str | None:
    """Why no scheduled reprocess of `app` should start now; None: it may."""
    if live_release(state, app) is None:
        return f"no release of {app} is live"
    for release in state.of_app(app):
        if release.state in ("staged", "hydrating", "ready"):
            return f"{release.name} is {release.state}: promote or retire it first"
        operation = state.blocking(release.name)
        if operation is not None:
            return f"{operation.opened.name} {operation.id} is under way on {release.name}"
    return None


def _reprocessing(app: str) -> ScheduleDefinition:
    @schedule(
        name=f"reprocess_{name_of(app)}",
        job=reprocess_job,
        cron_schedule=_REPROCESS_CRON,
        execution_timezone="UTC",
        default_status=DefaultScheduleStatus.STOPPED,
        description=f"Corrects {app} for late records: stages the live release's code as the next version, which reads the "
        "whole history, is compared and checked, and waits for approval. Skipped while another version waits or an "
        "operation is under way.",
    )
    def reprocessing(context: ScheduleEvaluationContext, platform: Platform) -> RunRequest | SkipReason:
        try:
            with platform.open(context.log.info) as operations:
                state = operations.registry.state()
                reason, live = why_not(state, app), live_release(state, app)
        except SwitchyardError as error:
            return SkipReason(visible(str(error), lines=True))
        if reason is not None or live is None:
            return SkipReason(reason or "")
        # the live release's code, not whatever is in the apps' folder now
        config = {"app": app, "same_as": live.name, "correction": "scheduled", "execute": True}
        return RunRequest(run_config={"ops": {"reprocess": {"config": config}}}, tags={APP_TAG: app})

    return reprocessing


def _when_due(
    name: str, job: JobDefinition, cron: str, description: str, *, due: Callable[[Context], object], idle: str
) -> ScheduleDefinition:
    """A schedule that is on, and skips with `idle` as its reason if nothing is due by the registry."""

    @schedule(
        name=name,
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=DefaultScheduleStatus.RUNNING,
        description=description,
    )
    def turn(context: ScheduleEvaluationContext, platform: Platform) -> RunRequest | SkipReason:
        try:
            with platform.open(context.log.info) as operations:
                found = due(operations)
        except SwitchyardError as error:
            return SkipReason(visible(str(error), lines=True))
        return RunRequest() if found else SkipReason(idle)

    return turn


def _overdue(context: Context) -> bool:
    state = context.registry.state()
    return bool(expired(state, context.now_ms()) or to_clean(context, state))


quality_checks_hourly = _when_due(
    "quality_checks_hourly",
    quality_job,
    _QUALITY_CRON,
    "Every hour: checks the result of every live release.",
    due=lambda context: context.registry.state().chains,
    idle="nothing is live",
)
refresh_hourly = _when_due(
    "refresh_hourly",
    refresh_job,
    _REFRESH_CRON,
    "Every hour: brings the diff of each live release and its standby up to date, so that a rollback takes seconds.",
    due=lambda context: to_refresh(context.registry.state()),
    idle="no app has a standby with a diff",
)
janitor_often = _when_due(
    "janitor_often",
    janitor_job,
    _JANITOR_CRON,
    "Every 5 minutes: ends operations past their deadline, if the supervisor is off, and deletes archives of resets that have expired.",
    due=_overdue,
    idle="no operation is past its deadline, and no archive has expired",
)
