"""The one way to print: what a command shows holds no control character of a record's, and no markup but ours."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
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
    """A line, or several, on standard output; `style`, such as `bold`, where that is a terminal."""
    if style and sys.stdout.isatty():
        _print(_text(text, style, lines=True))
    else:
        print(visible(text, lines=True), flush=flush)


def err(text: str = "") -> None:
    """A line, or several, on standard error."""
    print(visible(text, lines=True), file=sys.stderr, flush=True)


def say(line: str) -> None:
    """A line of what happens, on standard error, beside the output proper."""
    err(json_line("INFO", line) if log_format() == "json" else f"  {line}")


def failed(error: SwitchyardError) -> None:
    """What ends a command, on standard error: what is wrong, and what to do about it."""
    err(json_line("ERROR", str(error)) if log_format() == "json" else error.told)


def rewrite(line: str) -> None:
    """A line on standard error over the one before it, for a count that runs on a terminal."""
    print(f"\r\x1b[K{visible(line)}", end="", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout; a path or a date in it as text."""
    print(json_text(value, indent=2))


def print_json_line(value: Any) -> None:
    """A JSON document on one line of stdout, at once."""
    print(json_text(value), flush=True)


def print_facts(facts: Mapping[str, str | None]) -> None:
    """Names and values under each other, without the ones that are None."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
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
    """A table. `styles`: of a cell with exactly that text, as `{"failed": "red"}`."""
    from rich.table import Table

    table = Table(title=None if title is None else _text(title))
    for column in columns:
        table.add_column(_text(column))
    for row in rows:
        table.add_row(*(_text(cell, (styles or {}).get(cell, "")) for cell in row))
    _print(table)


def progress() -> Progress:
    """A bar with a name, a number of records and the fields `rate` and `eta`."""
    from rich.progress import BarColumn, Progress, TextColumn

    texts = ("{task.completed:,.0f} of {task.total:,.0f} records", "{task.fields[rate]}", "{task.fields[eta]}")
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *(TextColumn(text, markup=False) for text in texts),
    )


def ask(question: str) -> str:
    """What is typed after a question on standard error."""
    import typer

    answer: str = typer.prompt(visible(question), err=True)
    return answer


def _text(text: str, style: str = "", *, lines: bool = False) -> Any:
    """For rich: a `Text` is no markup, whatever brackets it holds. A cell has one line, so that no record makes a row."""
    from rich.text import Text

    return Text(visible(text, lines=lines), style=style)


def _print(shown: Any) -> None:
    from rich.console import Console

    terminal = sys.stdout.isatty()
    Console(
        highlight=False, markup=False, emoji=False, soft_wrap=not terminal, width=None if terminal else _WIDTH
    ).print(shown)
