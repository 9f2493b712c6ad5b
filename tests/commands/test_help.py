"""The help of each command, on a terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from orchestration.cli import build


def commands(group: Any, *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command with the words that call it, the groups themselves too."""
    for name, command in group.commands.items():
        yield (*above, name), command
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)


ALL = list(commands(typer.main.get_command(build())))


def shown(*arguments: str) -> str:
    found = CliRunner().invoke(build(), [*arguments, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert found.exit_code == 0
    return found.output


@pytest.mark.parametrize(("called", "command"), ALL, ids=[" ".join(called) for called, _ in ALL])
def test_no_option_and_no_example_is_cut(called: tuple[str, ...], command: Any) -> None:
    text = shown(*called)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    words = set(text.replace(",", " ").split())
    assert {name for each in command.params for name in (*each.opts, *each.secondary_opts) if name[0] == "-"} <= words


@pytest.mark.parametrize(("called", "command"), ALL, ids=[" ".join(called) for called, _ in ALL])
def test_only_the_terminal_breaks_the_lines_of_a_paragraph(called: tuple[str, ...], command: Any) -> None:
    assert all(paragraph and "\n" not in paragraph for paragraph in command.help.split("\n\n"))


def test_a_long_paragraph_fills_the_lines_of_the_terminal() -> None:
    assert (
        " It is refused if it would now do something else. If its diff is older than 10\n"
        " minutes, both releases are first compared and checked again. Consumers move\n"
        " only if the outcome is no worse than what was shown.\n"
    ) in re.sub(" +\n", "\n", shown("approve"))


def test_the_list_of_commands_is_whole() -> None:
    text = shown()
    assert "…" not in text
    assert {called[0] for called, _ in ALL} <= set(text.split())


def test_a_reset_may_lack_input_of_the_old_result() -> None:
    text = " ".join(shown("reset").replace("│", " ").split())
    assert "if Kafka no longer keeps input that the old result contains: refuse, or accept a result without it." in text
    assert "the live release has read" not in text


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("register-follower", "{APP} {GROUP}"), ("forget-follower", "{APP} {GROUP}"), ("follow", "{APP}")],
)
def test_commands_have_one_name_for_the_app_of_a_follower(command: str, arguments: str) -> None:
    assert f"Usage: switchyard {command} [OPTIONS] {arguments}\n" in re.sub(" +\n", "\n", shown(command))
