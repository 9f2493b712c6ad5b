"""`switchyard ui`: Dagster's UI on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestration.commands.context import load_settings


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(ui)


def ui(
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of Dagster's web server, for this machine alone.")
    ] = 3000,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="A UI that can't launch, stop or change anything.")
    ] = False,
    spark_runs: Annotated[
        int | None,
        typer.Option(min=0, help="How many runs may have a Spark session at once; default: what the memory holds."),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option("--home", metavar="FOLDER", help="Dagster's instance; default: `dagster` in the state folder."),
    ] = None,
) -> None:
    """Start Dagster with its UI and daemon, until Ctrl-C. With --read-only, start the UI alone.

    A workspace.yaml in the working folder takes the place of Switchyard's own.
    """
    from orchestration.local.ui import become_dagster

    become_dagster(load_settings(), home=home, port=port, read_only=read_only, spark_runs=spark_runs)
