"""The terminal without a process: a command runs here, its output is captured, and its drivers are threads."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration import cli
from orchestration.operations import context
from pipelines.settings import Settings, get_settings
from tests.shared.threads import Threads, drives, patient, trials_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code. `shown`: both outputs as a terminal shows them."""

    code: int
    out: str
    err: str
    shown: str = ""

    @property
    def text(self) -> str:
        return self.out + self.err


class _Output(io.StringIO):
    """One of a command's outputs. What is written to it is shown, too, but not the log of a driver in a thread."""

    def __init__(self, shown: io.StringIO) -> None:
        super().__init__()
        self._shown = shown

    def write(self, text: str) -> int:
        if not drives():
            self._shown.write(text)
        return super().write(text)


@dataclass(frozen=True)
class Terminal:
    """`switchyard` in a folder. `launcher`: starts its drivers; None: it may start nothing.

    `spark`: the session in which it compares, checks and tries apps; None: it may do none of that.
    """

    settings: Settings
    folder: Path
    launcher: Threads | None = None
    spark: Callable[[], SparkSession] | None = None

    def run(self, *arguments: object, **environment: str) -> Said:
        """Runs a command as `main` does. Raises unexpected errors: for the user they would be a traceback."""
        shown = io.StringIO()
        out, err = _Output(shown), _Output(shown)
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.chdir(self.folder)
            for name, value in {**self.settings.environment(), "COLUMNS": "200", **environment}.items():
                patch.setenv(name, value)
            # nobody answers a question to the user
            patch.setattr("sys.stdin", io.StringIO())
            patch.setattr(context, "LocalLauncher", self._launch_with)
            patch.setattr(context, "Context", partial(context.Context, sleep=patient))
            if self.spark is not None:
                stack.enter_context(trials_in(self.spark()))
            get_settings.cache_clear()
            stack.callback(get_settings.cache_clear)
            stack.enter_context(redirect_stdout(out))
            stack.enter_context(redirect_stderr(err))
            code = cli.run(list(map(str, arguments)))
        return Said(code, out.getvalue(), err.getvalue(), shown.getvalue())

    def _launch_with(self, settings: Settings) -> Threads:
        assert self.launcher is not None, "a command that should not start a driver"
        return self.launcher.with_settings(settings)
