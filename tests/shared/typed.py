"""Commands as a document or a message tells to type them."""

from __future__ import annotations

import shlex
from functools import cache
from typing import Any

import typer.main

from orchestration.cli import build


@cache
def _group() -> Any:
    return typer.main.get_command(build())


def exists(name: str) -> bool:
    """Whether `switchyard` has a command of that name."""
    return name in _group().commands


def only_plans(line: str) -> bool:
    """Whether that command, typed like this, only shows its plan."""
    name, *arguments = line.split()
    takes = {option for each in _group().commands[name].params for option in each.opts} if exists(name) else set()
    return "--execute" in takes and "--execute" not in arguments


def require(line: str) -> None:
    """Raises what typer raises for a command, without `switchyard`, that can't be typed like this."""
    name, *arguments = shlex.split(line)
    context = _group().make_context("switchyard", [name, *arguments])
    command = _group().get_command(context, name)
    assert command is not None, f"there is no command {name}"
    command.make_context(name, arguments, parent=context)
