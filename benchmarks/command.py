"""The commands that are measured, as their users start them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from pipelines.settings import Settings

# takes the arguments of `switchyard`, returns its standard output. Raises RuntimeError if the command fails
Command = Callable[..., str]


def as_process(settings: Settings) -> Command:
    """`switchyard` in a process of its own, whose start is a part of what is measured."""

    def switchyard(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "orchestration.cli", *arguments],
            env=settings.child_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode} of {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    return switchyard
