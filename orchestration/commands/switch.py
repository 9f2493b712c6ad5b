"""`switchyard diff | check | promote | approve | rollback | refresh | abort`: compare releases and move consumers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from expectations.verdict import VOLUME_TOLERANCE
from orchestration.commands.context import load_settings
from orchestration.commands.options import App, Execute, Json, MissingHistory, Name, Reason, VolumeTolerance, seconds
from orchestration.commands.show import run_plan, show_comparison, show_verdict, what_failed_shown
from orchestration.commands.terminal import out, print_json, say


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    for command in (diff, check, promote, approve, rollback, refresh, abort):
        app.command()(command)


def diff(
    name: Name,
    tolerance: Annotated[float, typer.Option(min=0, help="Relative tolerance for floating-point columns.")] = 0.0,
    # samples are kept in the registry; SAMPLES_BYTES limits what fits there
    samples: Annotated[int, typer.Option(min=0, max=1000, help="How many differing keys to show at most.")] = 10,
    missing_history: MissingHistory = "refuse",
    as_json: Json = False,
) -> None:
    """Compare a release with the live one, or the live one with the standby, at exactly the same boundary."""
    from orchestration.operations.context import open_context
    from orchestration.operations.procedures.diff import diff as compare

    context, accept = open_context(load_settings(), say=say), missing_history == "accept"
    found = compare(context, name, tolerance=tolerance, samples=samples, accept_missing=accept)
    if as_json:
        print_json(found.as_json())
    else:
        show_comparison(found)


def check(
    name: Name,
    volume_tolerance: VolumeTolerance = VOLUME_TOLERANCE,
    missing_history: MissingHistory = "refuse",
    as_json: Json = False,
) -> None:
    """Run a release's suite of expectations up to the evidence cut. Exit code 1 unless the verdict is good."""
    from orchestration.operations.context import open_context
    from orchestration.operations.procedures.check import check as run

    context, accept = open_context(load_settings(), say=say), missing_history == "accept"
    say("starting Spark to check the result")
    verdict = run(context, name, volume_tolerance=volume_tolerance, accept_missing=accept)
    if as_json:
        print_json({"release": verdict.release, "ok": verdict.ok, "passed": verdict.passed, "failed": verdict.failed,
                    "errored": verdict.errored, "failures": verdict.failures, "docs": verdict.docs})  # fmt: skip
    else:
        show_verdict(verdict)
    if not verdict.ok:
        raise typer.Exit(1)


def promote(
    app: Annotated[str, typer.Argument(metavar="APP[.vN]", help="The app, or the release to promote.")],
    version: Annotated[int | None, typer.Option(help="Version; default: the newest candidate.")] = None,
    max_evidence_age: Annotated[
        str, typer.Option(metavar="DURATION", help="Refuse if the diff is older than this.")
    ] = "10m",
    max_changed: Annotated[
        float | None, typer.Option(min=0, max=1, help="Refuse if more than this share of the keys differs.")
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Keep checking the release for this long after the switch. If a check fails, roll back, once.",
        ),
    ] = None,
    missing_history: MissingHistory = "refuse",
    reason: Reason = None,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Move an app's consumers to a release that is ready, compared and checked."""
    from orchestration.operations.context import open_context
    from orchestration.operations.planning.promote import plan_promote

    # parsed first: a wrong --watch must not lead to an unwatched promotion
    max_evidence_age_s, watch_s = seconds(max_evidence_age), None if watch is None else seconds(watch)
    context = open_context(load_settings(), say=say)
    plan = plan_promote(
        context,
        app,
        version=version,
        max_evidence_age_s=max_evidence_age_s,
        max_changed=max_changed,
        reason=reason,
        accept_missing=missing_history == "accept",
    )
    run_plan(plan, context, apply=execute, as_json=as_json)
    if watch_s is not None and execute:
        from orchestration.operations.supervising.watch import watch as keep_watch

        outcome = keep_watch(context, plan.releases[0], for_s=watch_s)
        # with --json, standard output belongs to the program that reads it
        (say if as_json else out)(outcome.message)
        if outcome.rolled_back:
            raise typer.Exit(1)


def approve(
    plan_id: Annotated[str, typer.Argument(metavar="PLAN_ID", help="The id that `switchyard reprocess` printed.")],
    reason: Reason = None,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Carry out the promotion that a reprocess proposed.

    It is refused if it would now do something else. If its diff is older than 10 minutes, both releases are first
    compared and checked again. Consumers move only if the outcome is no worse than what was shown.
    """
    from orchestration.operations.context import open_context
    from orchestration.operations.procedures.approve import plan_approved

    context = open_context(load_settings(), say=say)
    with what_failed_shown(as_json):
        plan = plan_approved(context, plan_id, reason=reason, refresh=execute)
    run_plan(plan, context, apply=execute, as_json=as_json)


def rollback(
    app: App,
    allow: Annotated[
        Literal["gap", "duplicates"] | None,
        typer.Option(help="If the live release is dead: what consumers of a stream may see."),
    ] = None,
    fence: Annotated[
        bool, typer.Option("--fence", help="Treat the live release as stuck even though its driver sends heartbeats.")
    ] = False,
    leaving: Annotated[
        str | None, typer.Option(metavar="RELEASE", help="Refuse unless this release is still live.")
    ] = None,
    reason: Reason = None,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Move an app's consumers back to the release that was live before."""
    from orchestration.operations.context import open_context
    from orchestration.operations.planning.rollback import plan_rollback

    context = open_context(load_settings(), say=say)
    plan = plan_rollback(context, app, allowed=allow, fence=fence, leaving=leaving, reason=reason)
    run_plan(plan, context, apply=execute, as_json=as_json)


def refresh(app: App, as_json: Json = False) -> None:
    """Bring the diff of an app's live release and standby up to date, so that a rollback takes seconds."""
    from orchestration.operations.context import open_context
    from orchestration.operations.procedures.refresh import refresh as run

    done = run(open_context(load_settings(), say=say), app)
    if as_json:
        print_json(asdict(done))
    else:
        out(str(done))


def abort(app: App, reason: Reason = None, execute: Execute = False, as_json: Json = False) -> None:
    """Abort the switch under way. Consumers stay where they are."""
    from orchestration.operations.context import open_context
    from orchestration.operations.planning.abort import plan_abort

    context = open_context(load_settings(), say=say)
    run_plan(plan_abort(context, app, reason=reason), context, apply=execute, as_json=as_json)
