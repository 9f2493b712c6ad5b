"""What the documents tell to type exists: every command, argument and option of it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from orchestration.cli import build

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(r"^\$ switchyard (?P<rest>.*?)(?:\s+#.*)?$", re.MULTILINE)
COMMANDS = sorted({match["rest"].removesuffix(" &") for page in PAGES for match in LINE.finditer(page.read_text())})


def test_the_documents_have_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_documents_can_be_typed(line: str) -> None:
    name, *arguments = shlex.split(line)
    group = typer.main.get_command(build())
    context = group.make_context("switchyard", [name, *arguments])
    command = group.get_command(context, name)  # type: ignore[attr-defined]
    assert command is not None, f"there is no command {name}"
    command.make_context(name, arguments, parent=context)
