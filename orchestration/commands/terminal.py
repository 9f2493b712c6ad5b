"""The one way to print. What a command prints contains no control characters from records, and no markup but ours."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from orchestration.commands.context import log_format
from pipelines.errors import SwitchyardError
from pipelines.logs import json_line
from pipelines.model.text import json_text, visible

if TYPE_CHECKING:
    from rich.progress import Progress

# a file or a pipe has no width of its own; tables need one
_WIDTH = 160


def out(text: str = "", *, style: str = "", flush: bool = False) -> None:
    """Prints one or more lines on standard output; with `style`, such as `bold`, if that is a terminal."""
    if style and sys.stdout.isatty():
        _print(_text(text, style, lines=True))
    else:
        print(visible(text, lines=True), flush=flush)


def err(text: str = "") -> None:
    """Prints one or more lines on standard error, after what was printed on standard output before."""
    # a pipe is not flushed by itself. If nobody reads it any more, the next print fails
    with suppress(OSError):
        sys.stdout.flush()
    print(visible(text, lines=True), file=sys.stderr, flush=True)


def say(line: str) -> None:
    """Prints what is happening on standard error, separately from the command's output."""
    err(json_line("INFO", line) if log_format() == "json" else f"  {line}")


class _Documents:
    """Whether this command has printed JSON on standard output."""

    printed = False


def forget_documents() -> None:
    """A new command starts in this process."""
    _Documents.printed = False


def failed(error: SwitchyardError, *, as_json: bool = False) -> None:
    """Prints the error that ends a command on standard error: what is wrong and what to do.

    With `as_json`, prints it on standard output as JSON instead, unless the command has already printed its output
    there.
    """
    if as_json and not _Documents.printed:
        print_json(error.as_json())
        if log_format() != "json":
            return
    err(json_line("ERROR", str(error)) if log_format() == "json" else error.told)


def rewrite(line: str) -> None:
    """Overwrites the last line on standard error, for a running count on a terminal."""
    print(f"\r\x1b[K{visible(line)}", end="", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output, with paths and dates as text."""
    print(json_text(value, indent=2))
    _Documents.printed = True


def print_json_line(value: Any) -> None:
    """Prints a JSON document on one line of standard output, unbuffered."""
    print(json_text(value), flush=True)
    _Documents.printed = True


def print_facts(facts: Mapping[str, str | None]) -> None:
    """Prints names and values, one pair per line. Leaves out values that are None."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    # a long path continues on the next line
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value is not None:
            table.add_row(_text(name), _text(value))
    _print(table)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Prints a table. `styles`: cell text -> style, for example `{"failed": "red"}`."""
    from rich.table import Table

    table = Table(title=None if title is None else _text(title))
    for column in columns:
        # a word that is longer than its column continues on the next line; rich would drop the rest
        table.add_column(_text(column), overflow="fold")
    for row in rows:
        table.add_row(*(_text(cell, (styles or {}).get(cell, "")) for cell in row))
    _print(table)


def progress() -> Progress:
    """A progress bar with a name, a number of records, and the fields `rate` and `eta`."""
    from rich.progress import BarColumn, Progress, TextColumn

    texts = ("{task.completed:,.0f} of {task.total:,.0f} records", "{task.fields[rate]}", "{task.fields[eta]}")
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *(TextColumn(text, markup=False) for text in texts),
    )


def ask(question: str) -> str:
    """Asks on standard error, and returns what is typed."""
    import typer

    answer: str = typer.prompt(visible(question), err=True)
    return answer


def _text(text: str, style: str = "", *, lines: bool = False) -> Any:
    """For rich: a `Text` is never parsed as markup. Without `lines` it is one line, so that a record can't fake a row."""
    from rich.text import Text

    return Text(visible(text, lines=lines), style=style)


def _print(shown: Any) -> None:
    from rich.console import Console

    terminal = sys.stdout.isatty()
    Console(
        highlight=False, markup=False, emoji=False, soft_wrap=not terminal, width=None if terminal else _WIDTH
    ).print(shown)
