"""The command `switchyard`, for a person on call. Exit codes: 0 done, 1 failed, 2 bad usage, 3 refused, 130
canceled.
"""

from __future__ import annotations

import inspect
import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated

import typer
from typer.exceptions import TyperException
from typer.models import CommandInfo, TyperInfo

from orchestration.commands import GROUPS, MODULES
from orchestration.commands.context import log_format
from orchestration.commands.terminal import err, failed, forget_documents, out
from pipelines.errors import BadUsage, Cancelled, SwitchyardError
from pipelines.logs import configure_command
from pipelines.private import keep_private
from pipelines.secrets import masked


def build() -> typer.Typer:
    """The app with every command."""
    app = typer.Typer(
        name="switchyard",
        help="Run long-lived PySpark streams on Kafka: reprocess, compare, switch and roll back without losing a record.",
        no_args_is_help=True,
        add_completion=False,
        # an unexpected error gets a plain traceback; `main` prints all others in two lines
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for module in MODULES:
        module.register(app)
    _unwrap(app)
    _group(app)
    return app


def _group(app: typer.Typer) -> None:
    """Puts the commands into the groups of the help, in their order."""
    group_of = {name: group for group, names in GROUPS.items() for name in names}
    order = list(group_of)
    registered: list[CommandInfo | TyperInfo] = [*app.registered_commands, *app.registered_groups]
    for each in registered:
        each.rich_help_panel = group_of[_name(each)]
    app.registered_commands.sort(key=lambda command: order.index(_name(command)))


def _name(command: CommandInfo | TyperInfo) -> str:
    return str(command.name or getattr(command.callback, "__name__", None))


def _unwrap(app: typer.Typer) -> None:
    """Puts each paragraph of a command's help on one line. Typer would keep the line breaks of the docstring beside
    those of the terminal.
    """
    for command in app.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _unwrap(group.typer_instance)


def main() -> None:
    """The console script."""
    keep_private()
    # SIGTERM works like Ctrl-C, so that an interrupted operation is closed
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = run(sys.argv[1:])
    except Exception:
        # caught here, because typer replaces any other exception hook with its own
        err(masked(traceback.format_exc().rstrip("\n")))
        code = 1
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Runs one command in this process. Returns its exit code; prints errors on standard error, with `--json` as JSON on
    standard output.
    """
    as_json = "--json" in takewhile(lambda argument: argument != "--", arguments)
    forget_documents()
    try:
        code = _run(arguments, as_json=as_json)
    except Cancelled as error:
        # the command has more to say
        failed(error, as_json=as_json)
        return error.exit_code
    if code == Cancelled.exit_code:
        failed(Cancelled(), as_json=as_json)
    return code


def _run(arguments: Sequence[str], *, as_json: bool) -> int:
    try:
        # typer shows wrong arguments to a person and ends the process, or raises what is wrong with them
        code = build()(list(arguments), prog_name="switchyard", standalone_mode=not as_json)
        return code if isinstance(code, int) else 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Cancelled:
        raise
    except SwitchyardError as error:
        failed(error, as_json=as_json)
        return error.exit_code
    except TyperException as error:
        wrong = BadUsage(error.format_message().rstrip("."), f"`{_path(error)} --help` lists the arguments and options")
        failed(wrong, as_json=True)
        return wrong.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return Cancelled.exit_code
    except Exception as error:
        # compared by name, so that `--help` does not load the Kafka client
        if type(error).__name__ == "KafkaException":
            said = error.args[0].str() if error.args else error
            failed(
                SwitchyardError(
                    f"Kafka failed: {said}", "see `switchyard status`; run the same command again later to do the rest"
                ),
                as_json=as_json,
            )
            return 1
        if (form := log_format()) != "json":
            raise
        # the command may have failed before it read the settings
        configure_command(form)
        logging.getLogger("switchyard").critical("%s: %s", type(error).__name__, error, exc_info=error)
        return 1


def _path(error: TyperException) -> str:
    """The command that typer refuses to run, such as `switchyard reset`."""
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "switchyard"


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        out(version("switchyard"))
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    # the options of `switchyard` itself; its help text is the app's
    pass


if __name__ == "__main__":
    main()
