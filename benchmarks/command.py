"""The commands that are measured, as their users start them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from tempfile import TemporaryFile

from pipelines.settings import Settings

# takes the arguments of `switchyard`, returns its standard output. Raises RuntimeError if the command fails
Command = Callable[..., str]


def as_process(settings: Settings) -> Command:
    """`switchyard` in a process of its own, whose start is a part of what is measured."""

    def switchyard(*arguments: str) -> str:
        # files: the JVM of a command ends a little later than the command, and would hold a pipe open
        with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            done = subprocess.run(
                [sys.executable, "-m", "orchestration.cli", *arguments],
                env=settings.child_environment(),
                stdout=out,
                stderr=err,
                check=False,
            )
            out.seek(0)
            err.seek(0)
            if done.returncode:
                raise RuntimeError(f"exit code {done.returncode} of {' '.join(arguments)}: {err.read()}")
            return out.read()

    return switchyard
