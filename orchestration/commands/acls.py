"""`switchyard acls`: the rights that each role needs on a Kafka cluster, as commands of Kafka's own tool."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.options import Json
from orchestration.commands.terminal import out, print_json
from pipelines.errors import BadUsage


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command()(acls)


def acls(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="One of: driver, operator, follower.")],
    app: Annotated[str, typer.Argument(metavar="APP", help="Name of the app, for example stock-stats.")],
    principal: Annotated[str, typer.Option(help="Who gets the rights, for example User:stock-stats-driver.")],
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="TOPIC", help="A topic that the app reads; repeatable. For drivers and operators."
        ),
    ] = None,
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="APP",
            help="Another app whose result the app reads; repeatable. For drivers and operators. Gives Read on all its releases.",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP", help="A follower's consumer group; repeatable. For an operator the default is any."
        ),
    ] = None,
    tombstones: Annotated[
        bool, typer.Option("--tombstones", help="Let an operator write to results too, for `reset --output tombstone`.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the minimal ACLs that a role needs for an app. Changes nothing and contacts no broker."""
    from pipelines.kafka.acls import ROLES, as_commands, rights

    chosen = next((each for each in ROLES if each == role), None)
    if chosen is None:
        raise BadUsage(f"there is no role {role}", fix=f"the roles are: {', '.join(ROLES)}")
    found = rights(chosen, app, inputs=input_ or (), upstream=upstream or (), groups=group or (), tombstones=tombstones)
    lines = as_commands(found, principal, load_settings().bootstrap)
    if as_json:
        print_json([asdict(right) for right in found])
    else:
        out("\n".join(lines))
