"""The shell around an operation: the run shows its plan, and fails with its error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dagster import AssetExecutionContext, DagsterInstance, OpExecutionContext

from orchestration.defs import report
from orchestration.defs.names import APP_TAG, RELEASE_TAG, partitions_name
from orchestration.defs.resources import by_dagster
from orchestration.operations.context import Context
from orchestration.operations.execute import execute as apply_plan
from orchestration.operations.plans.plan import Plan
from pipelines.errors import SwitchyardError
from pipelines.model.names import split_release
from pipelines.model.text import visible

RunContext = OpExecutionContext | AssetExecutionContext


@contextmanager
def failures_told() -> Iterator[None]:
    """Turns an operation's error into the run's failure, with what to do. No error keeps control characters."""
    try:
        yield
    except SwitchyardError as error:
        raise report.failure(error) from error
    except Exception as error:
        report.make_visible(error)
        raise


def carry_out(context: RunContext, operations: Context, make: Callable[[], Plan], *, execute: bool) -> Plan:
    """Makes the plan and, with `execute`, applies it. The run shows the plan either way, even if it fails."""
    plan = make()
    steps = "\n".join(f"{n}. {visible(step)}" for n, step in enumerate(plan.steps(), 1))
    context.log.info(f"plan {plan.id}:\n{steps}")
    for warning in plan.warnings:
        context.log.warning(visible(warning, lines=True))
    tag_run(context, plan.releases[0])
    if not execute:
        context.log.info("nothing is changed; set execute: true to carry out the plan")
        return plan
    try:
        apply_plan(operations, plan)
    except SwitchyardError as error:
        raise report.failure(error, plan) from error
    return plan


def run_plan(context: OpExecutionContext, operations: Context, make: Callable[[], Plan], *, execute: bool) -> Plan:
    """`carry_out` for an op: adds the plan to its output's metadata."""
    plan = carry_out(context, operations, make, execute=execute)
    context.add_output_metadata(report.of_plan(plan, executed=execute))
    return plan


def tag_run(context: RunContext, release: str) -> None:
    """Tags the run with the release and the app that it is about, so that it can be found by them."""
    parts = split_release(release)
    if parts is not None:
        context.instance.add_run_tags(context.run_id, {RELEASE_TAG: release, APP_TAG: parts[0]})


@contextmanager
def verdicts_told(context: OpExecutionContext, operations: Context) -> Iterator[None]:
    """Reports the verdicts of the gate in this run as results of the asset checks, even if the operation fails."""
    began_ms = operations.now_ms()
    try:
        yield
    finally:
        for release in operations.registry.known.releases.values():
            verdict, suites = release.verdict, release.spec.suites
            if verdict is not None and suites and verdict.at_ms >= began_ms and by_dagster(verdict):
                add_partition(context.instance, release.name)
                for event in report.verdict_events(release, verdict):
                    # log_event accepts it, although its annotation does not say so
                    context.log_event(event)  # type: ignore[arg-type]


def add_partition(instance: DagsterInstance, release: str) -> None:
    """Makes a release a partition of its app's results, unless it already is."""
    parts = split_release(release)
    if parts is not None:
        instance.add_dynamic_partitions(partitions_name(parts[0]), [release])
