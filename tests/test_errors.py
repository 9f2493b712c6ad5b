"""Every error says what to do. A refusal names the command that helps, or the option of the same command.

What a message tells to type can be typed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.exceptions import TyperException

from tests.shared import typed

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("orchestration", "expectations", "pipelines/engine", "pipelines/kafka", "pipelines/model", "pipelines/follow")
ERRORS = {"SwitchyardError", "BadUsage", "Refused", "Unavailable", "LoginRefused"}
# what helps: a command, or an option of the same command; or text that is made elsewhere
HELPS = re.compile(
    r"`switchyard [a-z]|--[a-z]|\.(again|way|fix|way_out)\b|_way_out|_way_there|_way_to_|another_version|after_failure|^fix$"
)

# file -> why one of its errors says nothing about what to do
WITHOUT_FIX = {
    "orchestration/jvm/class_archive.py": "its `write` does",
    "orchestration/operations/comparing/since.py": "whoever has ended the operation was told",
}
# file -> why no command of ours helps after one of its refusals
WITHOUT_COMMAND = {
    "orchestration/defs/resets.py": "a field of the job's form does",
    "pipelines/engine/code.py": "only its author can change the code",
    "pipelines/engine/probe.py": "only its author can change the code",
    "pipelines/engine/rehearsal.py": "only its author can change the code",
    "pipelines/engine/repeats.py": "only its author can change the code",
    "pipelines/follow/moves.py": "only the consumer's own store does",
    "pipelines/kafka/topics.py": "only a backup does, or another topic",
}


def errors_in(source: str) -> Iterator[tuple[str, str | None]]:
    """The kind of each error that is made there, and the code of its `fix`; None: it has none."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
            fixes = [k.value for k in node.keywords if k.arg == "fix"] or node.args[1:2]
            yield node.func.id, ast.unparse(fixes[0]) if fixes else None


def names_no_command(kind: str, fix: str | None) -> bool:
    return kind == "Refused" and fix is not None and HELPS.search(fix) is None


def in_rooms() -> Iterator[tuple[str, str, str | None]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for kind, fix in errors_in(path.read_text()):
                yield str(path.relative_to(ROOT)), kind, fix


@pytest.mark.slow
def test_every_error_says_what_to_do() -> None:
    assert {where for where, _, fix in in_rooms() if fix is None} == set(WITHOUT_FIX)


@pytest.mark.slow
def test_every_refusal_names_what_helps() -> None:
    found = {(where, fix) for where, kind, fix in in_rooms() if names_no_command(kind, fix)}
    assert {where for where, _ in found} == set(WITHOUT_COMMAND), found


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("raise Refused('it runs', fix='stop it')", True),
        ("raise Refused('it runs', 'stop it')", True),
        ("raise Refused('it runs', fix=f'`switchyard stop {name} --execute`')", False),
        ("raise Refused('it runs', fix='add --stop')", False),
        ("raise Refused(loss.what, fix=loss.way)", False),
        ("raise BadUsage('no such app', fix='name another')", False),
    ],
)
def test_a_refusal_that_leaves_it_open_is_seen(line: str, seen: bool) -> None:
    [(kind, fix)] = errors_in(line)
    assert names_no_command(kind, fix) == seen


# -- commands in messages

COMMAND = re.compile(r"`switchyard ([^`]+)`")
# a command, and what the message says that it does: "`switchyard stage sums --execute` makes a new version"
DONE = re.compile(r"`switchyard ([^`]+)` (?!shows )[a-z]+s\b")
# what is filled in; it can be a name and a number
FILLED = "1"


def commands_in(source: str, what: re.Pattern[str] = COMMAND) -> Iterator[str]:
    """What the texts of a module tell to type, without `switchyard`. Docstrings are for readers of the code."""
    tree = ast.parse(source)
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) not in documented:
            yield from what.findall(text_of(node))


def text_of(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(text_of, parts))
        # options that a module names once
        case ast.FormattedValue(value=ast.Name(id=name)) if name.isupper():
            return ""
        case ast.FormattedValue():
            return FILLED
        case _:
            return ""


def told(what: re.Pattern[str] = COMMAND) -> set[str]:
    paths = [path for room in (*ROOMS, "pipelines/testing") for path in (ROOT / room).rglob("*.py")]
    found = {command for path in paths for command in commands_in(path.read_text(), what)}
    return {command for command in found if not command.startswith(FILLED)}


def wrong_in(command: str) -> str | None:
    """Why `command` can't be typed, with what is optional, in brackets. It may be named without its arguments, where the
    reader knows them.
    """
    command = command.replace("[", "").replace("]", "")
    if typed.exists(command):
        return None
    try:
        typed.require(command)
    except (AssertionError, TyperException) as error:
        return str(error) or type(error).__name__
    return None


def test_a_command_of_a_message_can_be_typed() -> None:
    commands = told()
    assert len(commands) > 40
    assert {command: wrong for command in commands if (wrong := wrong_in(command)) is not None} == {}


@pytest.mark.parametrize("command", ["undoo 1", "undo", "undo 1 --exec", "undo 1 2"])
def test_one_that_can_not_be_typed_is_seen(command: str) -> None:
    assert (wrong_in(command) is None) == (command == "undo")


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("fix = f'`switchyard stop {name} --execute`, then `switchyard wait {name}`'", ["stop 1 --execute", "wait 1"]),
        ("fix = 'see `switchyard status`' + f'; or `switchyard undo {op}`'", ["status", "undo 1"]),
        ("'`switchyard no such command`'", []),
    ],
)
def test_the_commands_of_a_message_are_seen(line: str, commands: list[str]) -> None:
    assert list(commands_in(line)) == commands


def test_a_command_that_only_shows_its_plan_is_not_said_to_do_it() -> None:
    commands = told(DONE)
    assert len(commands) > 20
    assert {command for command in commands if typed.only_plans(command)} == set()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fix = f'`switchyard stage {app}` makes a new version'", True),
        ("fix = f'`switchyard stage {app} --execute` makes a new version'", False),
        ("fix = f'`switchyard stage {app}` shows what it would do'", False),
        ("fix = f'`switchyard refresh {app}` brings it up to date'", False),
    ],
)
def test_one_that_is_said_to_do_it_is_seen(line: str, said: bool) -> None:
    assert any(map(typed.only_plans, commands_in(line, DONE))) == said
