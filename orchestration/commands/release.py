"""`switchyard stage | start | stop | wait | retire | reprocess`: releases and their drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from expectations.verdict import VOLUME_TOLERANCE
from orchestration.commands.context import load_settings
from orchestration.commands.options import (
    App,
    Correction,
    Execute,
    From,
    Json,
    MissingHistory,
    Name,
    Reason,
    SameAs,
    Set,
    Upstream,
    Version,
    VolumeTolerance,
    seconds,
    settings_of,
)
from orchestration.commands.show import run_plan, show_found, show_plan, what_failed_shown
from orchestration.commands.terminal import out, print_json, progress, say
from pipelines.errors import Cancelled
from pipelines.model.text import visible

if TYPE_CHECKING:
    from orchestration.operations.context import Context
    from orchestration.operations.planning.stage import Asked
    from orchestration.operations.procedures.reprocess import Reprocessed
    from orchestration.operations.procedures.wait import Hydration

Unread = Annotated[
    int,
    typer.Option(
        "--unread",
        min=0,
        help="How many records a batch may leave unread while the release still counts as caught up.",
    ),
]
For = Annotated[str, typer.Option("--for", metavar="DURATION", help="How long the release must stay caught up.")]
Timeout = Annotated[str, typer.Option(metavar="DURATION", help="Longest time to wait.")]


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    for command in (stage, start, wait, stop, retire, reprocess):
        app.command()(command)


def _context() -> Context:
    from orchestration.operations.context import open_context

    return open_context(load_settings(), say=say)


def stage(
    app: App,
    version: Version = None,
    code: From = None,
    same_as: SameAs = None,
    set_: Set = None,
    correction: Correction = None,
    upstream: Upstream = None,
    missing_history: MissingHistory = "refuse",
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Freeze an app's code as a new release, after trying it on empty input."""
    from orchestration.operations.planning.stage import plan_stage

    context = _context()
    plan = plan_stage(
        context,
        app,
        version=version,
        code_dir=code,
        same_as=same_as,
        settings=settings_of(set_),
        correction=correction,
        accept_missing=missing_history == "accept",
        upstream=upstream or (),
    )
    run_plan(plan, context, apply=execute, as_json=as_json)


def start(
    name: Name,
    force: Annotated[bool, typer.Option(help="Take over from a driver that still runs.")] = False,
    missing_history: MissingHistory = "refuse",
    reason: Reason = None,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Start the driver of a release. If one already runs, keep it."""
    from orchestration.operations.planning.run import plan_start

    context = _context()
    plan = plan_start(context, name, force=force, accept_missing=missing_history == "accept", reason=reason)
    run_plan(plan, context, apply=execute, as_json=as_json)


def stop(
    name: Name, timeout: Timeout = "120s", reason: Reason = None, execute: Execute = False, as_json: Json = False
) -> None:
    """Stop the driver of a release at a boundary."""
    from orchestration.operations.planning.run import plan_stop

    context = _context()
    plan = plan_stop(context, name, timeout_s=seconds(timeout), reason=reason)
    run_plan(plan, context, apply=execute, as_json=as_json)


def wait(
    name: Name,
    unread: Unread = 0,
    for_: For = "10s",
    timeout: Timeout = "1h",
    missing_history: MissingHistory = "refuse",
    as_json: Json = False,
) -> None:
    """Wait until a release has caught up and stays caught up, then set it to ready."""
    from orchestration.operations.procedures.wait import wait_ready

    context = _context()
    try:
        with _bar(as_json) as on_progress:
            found = wait_ready(
                context, name, unread_records=unread, for_s=seconds(for_), timeout_s=seconds(timeout),
                accept_missing=missing_history == "accept", on_progress=on_progress,
            )  # fmt: skip
    except KeyboardInterrupt:
        raise Cancelled(
            f"canceled: only the waiting has ended, {name} is not stopped",
            f"`switchyard wait {name}` waits again; `switchyard status {name}` shows how it is; "
            f"`switchyard stop {name} --execute` stops it",
        ) from None
    if as_json:
        print_json({"release": found.release, "ready": True, "records": found.position_records,
                    "records_per_s": found.records_per_s, "unread_records": found.unread_records,
                    "late_dropped": found.late_dropped, "dead_lettered": found.dead_lettered})  # fmt: skip
    else:
        out(f"{found.release} is ready: {found.position_records:,} records read")


def retire(
    name: Name,
    after: Annotated[
        str, typer.Option(metavar="DURATION", help="Refuse if the release has been out of use for a shorter time.")
    ] = "24h",
    reason: Reason = None,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Delete the topics, group, checkpoints and code of a release that nobody needs any more."""
    from orchestration.operations.planning.retire import plan_retire

    context = _context()
    run_plan(plan_retire(context, name, after_s=seconds(after), reason=reason), context, apply=execute, as_json=as_json)


def reprocess(
    app: App,
    version: Version = None,
    code: From = None,
    same_as: SameAs = None,
    set_: Set = None,
    correction: Correction = None,
    upstream: Upstream = None,
    downstream: Annotated[
        bool,
        typer.Option(
            "--downstream", help="Also reprocess each app that reads the live result, so that it reads the new one."
        ),
    ] = False,
    unread: Unread = 0,
    for_: For = "10s",
    timeout: Timeout = "1h",
    max_changed: Annotated[
        float | None, typer.Option(min=0, max=1, help="Refuse if more than this share of the keys differs.")
    ] = None,
    volume_tolerance: VolumeTolerance = VOLUME_TOLERANCE,
    auto_promote: Annotated[bool, typer.Option("--auto-promote", help="Promote without waiting for approval.")] = False,
    missing_history: MissingHistory = "refuse",
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Stage, start, wait, diff and check a new release in one go, then promote it once it is approved."""
    from orchestration.operations.plans.kind import Kind
    from orchestration.operations.procedures.reprocess import Conditions, chain_of, first_step, in_order
    from orchestration.operations.procedures.reprocess import reprocess as run

    context = _context()
    options: Asked = {
        "version": version, "code_dir": code, "same_as": same_as, "settings": settings_of(set_),
        "correction": correction, "accept_missing": missing_history == "accept", "upstream": upstream or (),
    }  # fmt: skip
    if not execute:
        plan = first_step(context, app, **options)
        if as_json:
            print_json({**plan.as_json(), "executed": False})
        else:
            show_plan(plan)
            left = "start, wait, diff, check" if plan.operation is Kind.STAGE else "wait, diff, check"
            out(f"then: {left}" + (", promote" if auto_promote else "; promote waits for approval"))
            for reader in chain_of(context.registry.state(), app) if downstream else []:
                out(f"then the same for {reader.spec.app}, with the code of {reader.name}, reading the new result")
            out("nothing is changed; add --execute to do it")
        return
    conditions = Conditions(
        unread_records=unread, for_s=seconds(for_), timeout_s=seconds(timeout), max_changed=max_changed,
        volume_tolerance=volume_tolerance, auto_promote=auto_promote,
    )  # fmt: skip
    try:
        with what_failed_shown(as_json), _bar(as_json) as on_progress:
            found = run(context, app, **options, downstream=downstream, on_progress=on_progress, conditions=conditions)
    except KeyboardInterrupt:
        raise Cancelled(
            "canceled: what was done before stays, and a release that was started keeps running",
            f"`switchyard status {app}` lists the releases; to go on with one, type the same command with --version; "
            "`switchyard stop RELEASE --execute` stops one; `switchyard operations` lists what is left to resume",
        ) from None
    if as_json:
        print_json(_as_json(found))
        return
    for each in in_order(found):
        show_found(each.comparison, each.verdict)
        show_plan(each.plan)
        out("promoted" if each.promoted else f"to approve it: switchyard approve {each.plan.id} --execute")


def _as_json(found: Reprocessed) -> dict[str, Any]:
    return {
        "release": found.release,
        "promoted": found.promoted,
        "plan": found.plan.as_json(),
        "diff": found.comparison.as_json() if found.comparison else None,
        "downstream": [_as_json(each) for each in found.downstream],
    }


# how often a line may follow the one before, and how often it comes even if nothing has changed
_LINE_S, _SAME_LINE_S = 2.0, 60.0


class _bar:
    """A progress bar on a terminal, a line every few seconds elsewhere if anything has changed, nothing with --json."""

    def __init__(self, as_json: bool) -> None:
        self._silent = as_json
        self._progress: Any = None
        self._task: Any = None
        self._told_s = -_SAME_LINE_S
        self._news = ""
        self._error: str | None = None

    def __enter__(self) -> Any:
        return self.update

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, found: Hydration) -> None:
        """Shows how far the release is."""
        import sys
        import time

        if self._silent:
            return
        eta = "" if found.eta_s is None else f"{found.eta_s:,.0f} s left"
        # before the first batch it is not known
        rate = f"{found.records_per_s:,.0f}/s" if found.records_per_s else ""
        if found.error is not None and found.error != self._error:
            say(f"{found.release}: {visible(found.error)}")
        self._error = found.error
        if sys.stdout.isatty():
            if self._progress is None:
                self._progress = progress()
                self._progress.start()
                self._task = self._progress.add_task(found.release, rate="", eta="")
            self._progress.update(self._task, completed=found.position_records, total=found.total_records,
                                  rate=found.busy or rate, eta=eta)  # fmt: skip
            return
        records = f"{found.position_records:,} of {found.total_records:,} records"
        line = f"{found.release}: {', '.join(filter(None, (records, found.busy or rate, eta)))}"
        # live input grows all the time
        news = found.busy or line
        passed_s = time.monotonic() - self._told_s
        if passed_s > (_SAME_LINE_S if news == self._news else _LINE_S):
            self._told_s, self._news = time.monotonic(), news
            say(line)
