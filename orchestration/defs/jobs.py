"""The operations as jobs, with typed options. A run shows the plan, and changes nothing unless `execute` is set."""

# no `from __future__ import annotations`: Dagster reads the class of `config` from the annotation

from collections.abc import Callable
from enum import Enum

from dagster import AssetMaterialization, Config, OpExecutionContext, job, op
from pydantic import Field

from expectations.verdict import VOLUME_TOLERANCE
from orchestration.defs import report
from orchestration.defs.live import Promotion
from orchestration.defs.names import LIMITED, SPARK_POOL, TOKEN_TAG, URGENT, live_key, results_key
from orchestration.defs.resources import Alerts, Platform, SparkResource
from orchestration.defs.results import Hydrating, teller
from orchestration.defs.shell import add_partition, failures_told, run_plan, tag_run, verdicts_told
from orchestration.operations import journal
from orchestration.operations.context import Context
from orchestration.operations.execute import execute as apply_plan
from orchestration.operations.lifecycle import live_release
from orchestration.operations.planning.clean import plan_clean, to_clean
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.retire import plan_retire
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.plans.plan import Plan
from orchestration.operations.procedures.approve import plan_approved
from orchestration.operations.procedures.check import BeingReset
from orchestration.operations.procedures.check import check as run_gate
from orchestration.operations.procedures.refresh import refresh, to_refresh
from orchestration.operations.procedures.reprocess import Conditions, Reprocessed, first_step, in_order, reprocess
from orchestration.operations.supervising import watch
from pipelines.errors import Refused, SwitchyardError
from pipelines.model.text import visible

_EXECUTE = "Carry out the plan; without it, the plan is only shown."
_REASON = "Why you do this, for the audit trail."
# a run whose worker died stays "started"; Dagster's run monitor ends it after this long
_MAX_RUNTIME = "dagster/max_runtime"


class Allowed(Enum):
    gap = "gap"
    duplicates = "duplicates"


class ReprocessConfig(Hydrating):
    """What to reprocess. By default, the job shows the first plan and changes nothing."""

    app: str = Field(description="Name of the app, for example stock-stats.")
    version: int | None = Field(
        default=None,
        description="Version; default: the next free one. The run continues with a version that is already staged, if it matches.",
    )
    max_changed: float | None = Field(
        default=None, ge=0, le=1, description="Refuse if more than this share of the keys differs."
    )
    volume_tolerance: float = Field(
        default=VOLUME_TOLERANCE,
        ge=0,
        description="Share by which the number of rows may differ from the live release's; 0.1 is 10%.",
    )
    auto_promote: bool = Field(default=False, description="Promote without waiting for approval.")
    downstream: bool = Field(
        default=False, description="Also reprocess each app that reads the live result, so that it reads the new one."
    )
    execute: bool = Field(default=False, description=_EXECUTE)


class PromoteConfig(Promotion):
    app: str = Field(description="The app, for example stock-stats, or the release, for example stock-stats.v2.")
    plan: str | None = Field(
        default=None,
        description="Id of the plan of a reprocess to approve. If its diff is too old, both releases are compared and checked again.",
    )


class RollbackConfig(Config):
    app: str = Field(description="Name of the app, for example stock-stats.")
    allow: Allowed | None = Field(
        default=None,
        description="If the live release is dead: what consumers of a stream may see, a gap or duplicates.",
    )
    fence: bool = Field(default=False, description="Treat the live release as stuck, and fence its driver.")
    leaving: str | None = Field(default=None, description="Refuse unless this release is still live.")
    reason: str | None = Field(default=None, description=_REASON)
    execute: bool = Field(default=False, description=_EXECUTE)


class StartConfig(Config):
    release: str = Field(description="Name of the release, for example stock-stats.v2.")
    force: bool = Field(default=False, description="Take over from a driver that still runs.")
    accept_missing_history: bool = Field(
        default=False,
        description="Accept that the result lacks input that the live release has read and Kafka no longer keeps.",
    )
    reason: str | None = Field(default=None, description=_REASON)
    execute: bool = Field(default=False, description=_EXECUTE)


class StopConfig(Config):
    release: str = Field(description="Name of the release, for example stock-stats.v2.")
    timeout_s: float = Field(default=120.0, gt=0, description="Longest time to wait for its batch to end, in seconds.")
    reason: str | None = Field(default=None, description=_REASON)
    execute: bool = Field(default=False, description=_EXECUTE)


class RetireConfig(Config):
    release: str = Field(description="Name of the release, for example stock-stats.v2.")
    # a day, so that nobody deletes a standby that is still needed
    after_s: float = Field(
        default=86_400.0, ge=0, description="Refuse if the release has been out of use for a shorter time, in seconds."
    )
    reason: str | None = Field(default=None, description=_REASON)
    execute: bool = Field(default=False, description=_EXECUTE)


class WatchConfig(Config):
    release: str = Field(description="The live release, for example stock-stats.v2.")
    for_s: float = Field(default=600.0, ge=0, description="How long to watch, in seconds.")
    interval_s: float = Field(default=60.0, gt=0, description="Time between two checks, in seconds.")


@op(pool=SPARK_POOL)
def reprocess_op(
    context: OpExecutionContext, config: ReprocessConfig, platform: Platform, pyspark: SparkResource
) -> None:
    """Stages, starts, waits, compares and checks; then promotes, or waits for approval."""
    asked = config.asked(config.version)
    with failures_told(), platform.open(context.log.info, pyspark) as operations, verdicts_told(context, operations):
        if not config.execute:
            run_plan(context, operations, lambda: first_step(operations, config.app, **asked), execute=False)
            return
        found = reprocess(
            operations,
            config.app,
            **asked,
            conditions=Conditions(
                unread_records=config.unread_records,
                for_s=config.for_s,
                timeout_s=config.timeout_s,
                max_changed=config.max_changed,
                volume_tolerance=config.volume_tolerance,
                auto_promote=config.auto_promote,
            ),
            downstream=config.downstream,
            on_progress=teller(context),
        )
        for each in in_order(found):
            _tell_of(context, operations, each)


def _tell_of(context: OpExecutionContext, operations: Context, found: Reprocessed) -> None:
    """Tells Dagster: the release as a partition, what was found as metadata, and the promotion as a plan."""
    tag_run(context, found.release)
    add_partition(context.instance, found.release)
    release = operations.registry.state().releases[found.release]
    beat = operations.beats().get(found.release)
    metadata: report.Metadata = {
        **report.of_release(release, beat),
        **report.of_found(found.comparison, found.verdict),
    }
    context.log_event(
        AssetMaterialization(asset_key=results_key(release.spec.app), partition=found.release, metadata=metadata)
    )
    context.add_output_metadata({**metadata, **report.of_plan(found.plan, executed=found.promoted)})
    if found.promoted:
        _tell_live(context, operations, found.plan)
    else:
        context.log.info(
            f"{found.release} waits for approval: run the job promote with plan: {found.plan.id} and execute: true"
        )


def _tell_live(context: OpExecutionContext, operations: Context, plan: Plan) -> None:
    """Tells Dagster that the alias now names another release."""
    release = operations.registry.state().releases[plan.releases[0]]
    beat = operations.beats().get(release.name)
    metadata = {**report.of_plan(plan, executed=True), "release": release.name, **report.of_release(release, beat)}
    context.log_event(AssetMaterialization(asset_key=live_key(release.spec.app), metadata=metadata))


def _planned(
    context: OpExecutionContext,
    platform: Platform,
    make: Callable[[Context], Plan],
    *,
    execute: bool,
    live: bool = False,
    pyspark: SparkResource | None = None,
) -> None:
    """Shows the plan that `make` makes and, with `execute`, carries it out. `live`: the plan moves an app's consumers."""
    with failures_told(), platform.open(context.log.info, pyspark) as operations:
        plan = run_plan(context, operations, lambda: make(operations), execute=execute)
        if live and execute:
            _tell_live(context, operations, plan)


@op
def promote_op(context: OpExecutionContext, config: PromoteConfig, platform: Platform, pyspark: SparkResource) -> None:
    """Moves an app's consumers to a release that is ready, compared and checked. The registry decides.

    If the evidence of an approved plan is too old, both releases are compared and checked again first.
    """

    def make(operations: Context) -> Plan:
        if config.plan is not None:
            with verdicts_told(context, operations):
                return plan_approved(
                    operations,
                    config.plan,
                    app=config.app,
                    version=config.version,
                    max_evidence_age_s=config.max_evidence_age_s,
                    max_changed=config.max_changed,
                    reason=config.reason,
                    refresh=config.execute,
                )
        return plan_promote(
            operations,
            config.app,
            version=config.version,
            max_evidence_age_s=config.max_evidence_age_s,
            max_changed=config.max_changed,
            reason=config.reason,
            accept_missing=config.accept_missing_history,
        )

    _planned(context, platform, make, execute=config.execute, live=True, pyspark=pyspark)


@op
def rollback_op(context: OpExecutionContext, config: RollbackConfig, platform: Platform) -> None:
    """Moves an app's consumers back to the release that was live before. If the live one is dead, it may compare both
    first.
    """

    def make(operations: Context) -> Plan:
        return plan_rollback(
            operations,
            config.app,
            allowed=config.allow.value if config.allow else None,
            fence=config.fence,
            leaving=config.leaving,
            reason=config.reason,
        )

    _planned(context, platform, make, execute=config.execute, live=True)


@op
def start_op(context: OpExecutionContext, config: StartConfig, platform: Platform) -> None:
    """Starts a release's driver. If one already runs, keeps it."""

    def make(operations: Context) -> Plan:
        plan = plan_start(
            operations,
            config.release,
            force=config.force,
            accept_missing=config.accept_missing_history,
            reason=config.reason,
        )
        token = operations.registry.known.releases[plan.releases[0]].token
        # a run that repeats this one gets its tags
        context.instance.add_run_tags(context.run_id, {TOKEN_TAG: f"{context.run_id}/{token}"})
        return plan

    _planned(context, platform, make, execute=config.execute)


@op
def stop_op(context: OpExecutionContext, config: StopConfig, platform: Platform) -> None:
    """Stops a release's driver at a boundary."""

    def make(operations: Context) -> Plan:
        return plan_stop(operations, config.release, timeout_s=config.timeout_s, reason=config.reason)

    _planned(context, platform, make, execute=config.execute)


@op
def retire_op(context: OpExecutionContext, config: RetireConfig, platform: Platform) -> None:
    """Deletes the topics, group, checkpoints and code of a release that nobody needs any more."""

    def make(operations: Context) -> Plan:
        return plan_retire(operations, config.release, after_s=config.after_s, reason=config.reason)

    _planned(context, platform, make, execute=config.execute)


@op
def watch_op(
    context: OpExecutionContext, config: WatchConfig, platform: Platform, pyspark: SparkResource, alerts: Alerts
) -> None:
    """Keeps checking a release that went live. If an expectation fails, rolls back, one time only, and fails the run."""
    tag_run(context, config.release)
    with failures_told(), platform.open(context.log.warning, pyspark) as operations, verdicts_told(context, operations):
        outcome = watch.watch(
            operations, config.release, for_s=config.for_s, interval_s=config.interval_s, alert=alerts.send
        )
        context.add_output_metadata({"checks": outcome.checks, "outcome": outcome.message})
        if outcome.rolled_back:
            raise SwitchyardError(
                outcome.message, fix=f"see the Data Docs of {config.release}; fix the app, then run the job reprocess"
            )


@op(pool=SPARK_POOL)
def quality_op(context: OpExecutionContext, platform: Platform, pyspark: SparkResource) -> None:
    """Runs the suite of every live release over everything that it has written. Fails if an expectation does, naming
    all.
    """
    failures: list[str] = []
    with failures_told(), platform.open(context.log.info, pyspark) as operations, verdicts_told(context, operations):
        state = operations.registry.state()
        for app in state.chains:
            release = live_release(state, app)
            if release is None or not release.spec.suites:
                continue
            try:
                verdict = run_gate(operations, release.name)
            except BeingReset as error:
                context.log.info(visible(f"not checked: {error}", lines=True))
                continue
            except SwitchyardError as error:
                # the other releases are still checked
                failures.append(f"{release.name}: {error}")
                continue
            context.log.info(f"{release.name}: {verdict.passed} passed, {verdict.failed} failed")
            failures += [f"{release.name}: {line}" for line in verdict.failures]
        context.add_output_metadata({"failed": len(failures), "failures": report.of_lines(failures)})
        if failures:
            raise SwitchyardError(
                "; ".join(failures),
                fix="see the Data Docs; if a result is wrong, go back: `switchyard rollback APP --execute`, or the job rollback",
            )


@op
def janitor_op(context: OpExecutionContext, platform: Platform) -> None:
    """Ends operations past their deadline, so that their releases are free and their consumers continue. Deletes
    archives of resets that have expired.
    """
    with failures_told(), platform.open(context.log.info) as operations:
        before = {o.id for o in operations.registry.state().operations.values() if o.closed is None}
        after = {o.id for o in journal.expire(operations.registry).operations.values() if o.closed is None}
        ended = sorted(before - after)
        cleaned = []
        for name in to_clean(operations, operations.registry.state()):
            try:
                apply_plan(operations, plan_clean(operations, name, reason="the archive has expired"))
                cleaned.append(name)
            except Refused as error:
                # the other releases are still cleaned
                context.log.warning(visible(error.in_one_line, lines=True))
        context.add_output_metadata(
            {
                "ended": len(ended),
                "operations": ", ".join(ended) or "none",
                "cleaned": ", ".join(cleaned) or "none",
            }
        )


@op
def refresh_op(context: OpExecutionContext, platform: Platform) -> None:
    """Brings the diff of each app's live release and standby up to date."""
    with failures_told(), platform.open(context.log.info) as operations:
        done, failures = [], []
        for app in to_refresh(operations.registry.state()):
            # the other apps are still refreshed
            try:
                done.append(str(refresh(operations, app)))
                context.log.info(done[-1])
            except Refused as error:
                # for example, a switch of this app has started in the meantime
                context.log.warning(visible(f"{app}: {error.in_one_line}", lines=True))
            except SwitchyardError as error:
                failures.append(f"{app}: {error.in_one_line}")
        context.add_output_metadata({"refreshed": report.of_lines(done)})
        if failures:
            raise SwitchyardError(
                "; ".join(failures),
                fix="run `switchyard refresh APP` to see why it fails; until it works, a rollback takes as long as reading everything since the last refresh",
            )


@job(name="reprocess", tags={_MAX_RUNTIME: str(26 * 3600)})
def reprocess_job() -> None:
    """Stage, hydrate, compare and check a new version beside the live one; promote it once it is approved."""
    reprocess_op.alias("reprocess")()


# longer than a switch takes, because an approval may compare and check again
@job(name="promote", tags={_MAX_RUNTIME: "3600", **URGENT})
def promote_job() -> None:
    """Move an app's consumers to another release, exactly once."""
    promote_op.alias("promote")()


@job(name="rollback", tags={_MAX_RUNTIME: "3600", **URGENT})
def rollback_job() -> None:
    """Move an app's consumers back to the standby. Takes seconds soon after a diff or a refresh."""
    rollback_op.alias("rollback")()


@job(name="start", tags={_MAX_RUNTIME: "300", LIMITED: "start", **URGENT})
def start_job() -> None:
    """Start a release's driver. If one already runs, keep it. The supervisor uses this job too."""
    start_op.alias("start")()


@job(name="stop", tags={_MAX_RUNTIME: "900"})
def stop_job() -> None:
    """Stop a release's driver at a boundary."""
    stop_op.alias("stop")()


@job(name="retire", tags={_MAX_RUNTIME: "900"})
def retire_job() -> None:
    """Delete everything that a release owns. This can't be undone."""
    retire_op.alias("retire")()


@job(name="watch", tags={_MAX_RUNTIME: "3600", LIMITED: "watch", **URGENT})
def watch_job() -> None:
    """Keep checking a release that has just gone live. If a check fails, roll back, one time only."""
    watch_op.alias("watch")()


@job(name="quality_checks", tags={_MAX_RUNTIME: "3600"})
def quality_job() -> None:
    """Check every live release."""
    quality_op.alias("quality_checks")()


@job(name="refresh", tags={_MAX_RUNTIME: "3600"})
def refresh_job() -> None:
    """Bring diffs up to date, so that rollbacks take seconds."""
    refresh_op.alias("refresh")()


@job(name="janitor", tags={_MAX_RUNTIME: "300"})
def janitor_job() -> None:
    """End operations past their deadline, and delete archives of resets that have expired."""
    janitor_op.alias("janitor")()


JOBS = (
    reprocess_job,
    promote_job,
    rollback_job,
    start_job,
    stop_job,
    retire_job,
    watch_job,
    quality_job,
    refresh_job,
    janitor_job,
)
