"""`switchyard jars`: what Spark and the broker need besides Python's packages."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.commands.options import Json
from orchestration.commands.terminal import err, out, print_json, say


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(jars)


def jars(
    no_archive: Annotated[
        bool,
        typer.Option(
            "--no-archive", help="Leave out the class archive. It takes a minute, and lets drivers start faster."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Fetch the jars of Spark and Kafka, check the hash of each, and compile Switchyard's Scala classes.

    Run it once after an installation, and after each upgrade. It only does what is left. A class archive that can't be
    written is no error: drivers then start more slowly.
    """
    from orchestration.jvm.set_up import set_up
    from orchestration.local.jars import read_list

    done = set_up(archive=not no_archive, say=say)
    if as_json:
        print_json(
            {
                "folder": done.folder, "fetched": done.fetched, "compiled": done.compiled, "archived": done.archived,
                "archive": done.archive, "trouble": None if done.trouble is None else done.trouble.as_json(),
            }
        )  # fmt: skip
        return
    if done.trouble is not None:
        err(f"{done.trouble.what}\n  {done.trouble.fix}")
    number = len(read_list())
    out(f"{number} jars {'fetched' if done.fetched else 'already there'}, checksums right: {done.folder}")
    out(f"Scala classes {'compiled' if done.compiled else 'already compiled'}")
    if done.archive is not None:
        out(
            f"class archive {'written' if done.archived else 'already written'}: {done.archive.stat().st_size >> 20} MiB"
        )
    elif done.trouble is None:
        out("no class archive: `switchyard jars` writes it")
