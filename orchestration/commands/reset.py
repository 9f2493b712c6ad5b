"""`switchyard reset | undo | bisect | clean`: make a release read again from another position, and take that back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.options import Execute, Json, Name, Reason, seconds
from orchestration.commands.show import run_plan
from orchestration.commands.terminal import ask, out, print_facts, print_json, say
from pipelines.errors import Refused

Stop = Annotated[bool, typer.Option("--stop", help="Stop the release first if it runs.")]
Timeout = Annotated[
    str,
    typer.Option(metavar="DURATION", help="Longest time to wait for the replay, or for followers to pass the switch."),
]


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    for command in (reset, undo, bisect, clean):
        app.command()(command)


def reset(
    name: Name,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first offsets that are kept.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of the input.")] = False,
    to_current: Annotated[
        bool,
        typer.Option("--to-current", help="To the offsets of the consumer group, after Kafka's own tool has moved it."),
    ] = False,
    to_datetime: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="To the first records at or after this time, for example 2026-11-01T00:00Z."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="PT6H", help="To the time this long ago, for example PT6H.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(help="By this many records: forward, or backward if negative.")
    ] = None,
    to_offset: Annotated[int | None, typer.Option(help="To this offset on every partition.")] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV", help="To the positions in this file: one line per partition, such as trades,0,1500."
        ),
    ] = None,
    skip: Annotated[
        str | None,
        typer.Option(metavar="RECORD", help="Skip exactly this record and keep the state, for example trades:0:1234."),
    ] = None,
    input_topics: Annotated[
        str | None,
        typer.Option(metavar="T[:0,1],U", help="Move only these inputs or partitions, for example trades:0,1,orders."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="POSITION", help="Stop at this position: current, latest, an offset or a time."),
    ] = None,
    state: Annotated[
        Literal["clear", "keep"] | None,
        # a longer metavar, here and below, would leave an option's name too little room at 80 columns
        typer.Option(
            metavar="STATE",
            help="Start with an empty state (clear) or keep it (keep); default: clear (with --skip: keep).",
        ),
    ] = None,
    output: Annotated[
        Literal["new", "truncate", "tombstone", "keep"] | None,
        typer.Option(
            metavar="OUTPUT",
            help="What happens to the result: new, truncate, tombstone or keep; default: new (with --state keep: keep).",
        ),
    ] = None,
    stop: Stop = False,
    stay_stopped: Annotated[bool, typer.Option("--stay-stopped", help="Do not start the release afterwards.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV", help="Write the new positions to this new file, for --from-file; also without --execute."
        ),
    ] = None,
    max_records_per_batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Make the batches of the replay smaller. The limit ends when the driver next starts after the replay.",
        ),
    ] = None,
    timeout: Timeout = "1h",
    force: Annotated[
        bool, typer.Option("--force", help="Reset despite a refusal that says that --force overrides it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation before deleting a result.")] = False,
    # the shared option is about input that the live release has read
    missing_history: Annotated[
        Literal["refuse", "accept"],
        typer.Option(
            metavar="CHOICE",
            help="What to do if Kafka no longer keeps input that the old result contains: refuse, or accept a result without it.",
        ),
    ] = "refuse",
    reason: Reason = None,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Make a release read again from another position. You choose the position, the state and the result."""
    from orchestration.operations.context import open_context
    from orchestration.operations.planning.reset.export import new_positions
    from orchestration.operations.planning.reset.plan import plan_reset
    from orchestration.operations.planning.reset.request import Request
    from orchestration.operations.plans.positions import PositionOptions, export_to, topics_of, until_of

    target = PositionOptions(
        to_earliest=to_earliest, to_latest=to_latest, to_current=to_current, to_datetime=to_datetime,
        by_duration=by_duration, shift_by=shift_by, to_offset=to_offset, from_file=from_file, skip=skip,
    ).target()  # fmt: skip
    request = Request(
        target=target, inputs=topics_of(input_topics), until=until_of(until), state=state, output=output, stop=stop,
        stay_stopped=stay_stopped, force=force, max_records_per_batch=max_records_per_batch, timeout_s=seconds(timeout, least_s=1),
        accept_missing=missing_history == "accept",
    )  # fmt: skip
    context = open_context(load_settings(), say=say)
    plan = plan_reset(context, name, request, reason=reason)

    def confirmed() -> None:
        if execute and request.chosen_output == "truncate" and not yes:
            _ask(plan.releases[0], shown=not as_json)
        if export is not None:
            export_to(export, new_positions(context, plan))

    run_plan(plan, context, apply=execute, as_json=as_json, before=confirmed)


def _ask(release: str, *, shown: bool) -> None:
    """`shown`: whether the plan was printed before the question."""
    if not (shown and sys.stdin.isatty()):
        why = "this is not a terminal" if shown else "--json asks no question"
        raise Refused(
            f"the result of {release} would be deleted, and you can't confirm that because {why}",
            fix="to skip the question, add --yes",
        )
    answer = ask(f"this deletes the result of {release} for good; type {release} to continue")
    if answer.strip() != release:
        raise Refused(
            f"{answer.strip()!r} is not {release}, so nothing was changed",
            fix=f"run the same `switchyard reset {release}` again, and type {release}",
        )


def undo(
    reset_id: Annotated[
        str, typer.Argument(metavar="RESET_ID", help="Id of a reset or of an undo, as `switchyard log` shows it.")
    ],
    stop: Stop = False,
    timeout: Timeout = "1h",
    reason: Reason = None,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Take a reset back: restore the position, state and result from before it."""
    from orchestration.operations.context import open_context
    from orchestration.operations.planning.reset.undo import plan_undo

    context = open_context(load_settings(), say=say)
    plan = plan_undo(context, reset_id, stop=stop, timeout_s=seconds(timeout, least_s=1), reason=reason)
    run_plan(plan, context, apply=execute, as_json=as_json)


def bisect(name: Name, as_json: Json = False) -> None:
    """Find the record that makes the next batch of a release fail. Works on a copy of its state.

    Exit code 1 if there is such a record.
    """
    from dataclasses import asdict

    from orchestration.operations.context import open_context
    from orchestration.operations.procedures.bisect import bisect as find

    found = find(open_context(load_settings(), say=say), name)
    if as_json:
        print_json({"poison_record": {**asdict(found), "way_out": found.way_out} if found else None})
    elif found is None:
        out("the next batch runs: no record makes it fail")
    else:
        print_facts(found.facts)
    if found is not None:
        raise typer.Exit(1)


def clean(
    name: Name,
    after: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Only archives at least this old; default: the setting archive_keep_s."),
    ] = None,
    reason: Reason = None,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Delete the archives that resets of a release left and that nobody needs any more."""
    from orchestration.operations.context import open_context
    from orchestration.operations.planning.clean import plan_clean

    context = open_context(load_settings(), say=say)
    plan = plan_clean(context, name, after_s=None if after is None else seconds(after), reason=reason)
    run_plan(plan, context, apply=execute, as_json=as_json)
