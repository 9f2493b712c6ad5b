"""`switchyard registry check | repair`: records that this version can't read, and topics that may lose records."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.options import Execute, Json, Reason
from orchestration.commands.show import run_plan
from orchestration.commands.terminal import out, print_json, print_table, say


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    registry = typer.Typer(
        no_args_is_help=True, help="Find registry entries that can't be read, and repair the registry."
    )
    registry.command()(check)
    registry.command()(repair)
    app.add_typer(registry, name="registry")


def check(as_json: Json = False) -> None:
    """Show what this version can't read: registry entries, the newest progress record of each release, heartbeats.

    Exit code 1 if there is something that it can't read. Also shows which topics of Switchyard and of Kafka itself may lose
    records with a broker.
    """
    from orchestration.operations.context import open_context
    from orchestration.operations.looking.durability import cluster_notes, own_topics
    from orchestration.operations.looking.unread import heartbeats_in_words, in_short, table_of, unread_progress

    context = open_context(load_settings(), say=say)
    with context.registry as registry:
        state = registry.state()
        progress = unread_progress(context, state.releases.values())
        context.beats()
        heartbeats = registry.heartbeats.unread
        kept = cluster_notes(context.settings, context.cluster.replication(own_topics(state.releases.values())))
    if as_json:
        print_json(
            {
                "unread": [asdict(each) for each in state.unread],
                "earlier": state.unread_before,
                "unread_progress": {release: error.what for release, error in progress.items()},
                "unread_heartbeats": heartbeats,
                "may_lose_records": list(kept),
            }
        )
    else:
        if state.unread:
            found = table_of(state.unread)
            print_table(found.columns, found.rows)
            out(f"{in_short(state)}; upgrade Switchyard on this machine, or run `switchyard registry repair`")
        else:
            out("every entry of the registry can be read")
        for release, error in progress.items():
            out(f"{release}: {error.in_one_line}")
        if heartbeats:
            out(f"{heartbeats_in_words(heartbeats)}; upgrade Switchyard on this machine, or find out who writes them")
        for note in kept:
            out(note)
    if state.unread or progress or heartbeats:
        raise typer.Exit(1)


def repair(
    offset: Annotated[list[int] | None, typer.Option(help="Repair only the entry at this offset; repeatable.")] = None,
    reason: Reason = None,
    execute: Execute = False,
    as_json: Json = False,
) -> None:
    """Ignore registry entries that this version can't read, so that the releases they hold can continue."""
    from orchestration.operations.context import open_context
    from orchestration.operations.planning.repair import plan_repair

    context = open_context(load_settings(), say=say)
    run_plan(plan_repair(context, offset or (), reason=reason), context, apply=execute, as_json=as_json)
