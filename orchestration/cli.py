"""The terminal of an on-call person: `switchyard`. Exit 0: done; 3: refused; 2: bad usage; 1: failed."""

from __future__ import annotations

import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from orchestration.commands import MODULES
from orchestration.commands.context import log_format
from orchestration.commands.terminal import err, failed, out
from pipelines.errors import SwitchyardError
from pipelines.logs import configure_command
from pipelines.private import keep_private
from pipelines.secrets import masked


def build() -> typer.Typer:
    """The app with every command."""
    app = typer.Typer(
        name="switchyard",
        help="Long-lived PySpark streams on Kafka: reprocess, compare, switch, and go back, without a loss.",
        no_args_is_help=True,
        add_completion=False,
        # a plain traceback for what nobody foresaw; the rest is said in two lines by `main`
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for module in MODULES:
        module.register(app)
    return app


def main() -> None:
    """The console script."""
    keep_private()
    # whoever is ended in the middle of an operation closes it, as at Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = run(sys.argv[1:])
    except Exception:
        # here, as typer puts its own hook for what nobody foresaw in the place of any other
        err(masked(traceback.format_exc().rstrip("\n")))
        code = 1
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Runs one command in this process. Returns its exit code; errors are told on standard error."""
    try:
        build()(list(arguments), prog_name="switchyard")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except SwitchyardError as error:
        failed(error)
        return error.exit_code
    except Exception as error:
        # by name: the terminal's help doesn't load a Kafka client
        if type(error).__name__ == "KafkaException":
            said = error.args[0].str() if error.args else error
            failed(
                SwitchyardError(
                    f"Kafka fails: {said}", "see `switchyard status`; the same command, later, does what is left"
                )
            )
            return 1
        if (form := log_format()) != "json":
            raise
        # it may have failed before the settings were read
        configure_command(form)
        logging.getLogger("switchyard").critical("%s: %s", type(error).__name__, error, exc_info=error)
        return 1
    return 0


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        out(version("switchyard"))
        raise typer.Exit


def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    # the options of `switchyard` itself; the help text is that of the app
    pass


if __name__ == "__main__":
    main()
