"""The tutorial, typed from top to bottom: its commands, its files, its changes of files.

Commands must print the page's words. Those of `EXACT` must print exactly what the page shows. `SWITCHYARD_RUNBOOK=write`
(`make runbook`) writes the output into the page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.engine.jvm.jars import jars_dir
from pipelines.settings import Settings
from tests.e2e.cluster import ROOT, OwnBroker
from tests.shared import console
from tests.shared.console import Shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "tutorial.md"
# what has been done before a test runs: the first block of the page
SET_UP = ["make setup", "export PATH=$PWD/.venv/bin:$PATH"]
# the page shows rows and counts of them, and nothing that depends on time
EXACT = tuple(f"switchyard {command} " for command in ("try", "wait", "check", "diff", "follow"))
# where a broker is if nobody says otherwise
_PORT = f":{Settings.model_fields['broker_port'].default}"
# a block in a console, a file, or a change of one; the language, the name of the file, the text
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"\n]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def changed(text: str, change: str) -> str:
    """A file after a change: lines with `-` are replaced by those with `+`. A blank line ends each place of the change."""
    for place in change.strip("\n").split("\n\n"):
        lines = place.splitlines()
        assert {line[0] for line in lines} <= {"-", "+", " "}, place
        before, after = ("".join(f"{x[1:]}\n" for x in lines if x[0] != left_out) for left_out in ("+", "-"))
        assert text.count(before) == 1, f"not there once:\n{before}"
        text = text.replace(before, after)
    return text


def test_a_change_replaces_lines_that_are_there_once() -> None:
    assert changed("a\nb\nc\nd\n", "-a\n+e\n\n b\n-c\n") == "e\nb\nd\n"
    for change in ("-x\n+y\n", "-a\n"):
        with pytest.raises(AssertionError, match="not there once"):
            changed("a\na\n", change)


def test_a_page_may_leave_out_lines_but_not_change_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWITCHYARD_RUNBOOK", raising=False)
    page = tmp_path / "page.md"
    text = "## Start\n\n```console\n$ stage \\\n    all\nstage all\n...\ntook 3 s\n```\n"
    page.write_text(text)
    [[shown]] = console.blocks(text, "Start")
    assert shown == Shown("stage \\\n    all", "stage all\n...\ntook 3 s\n")
    given = Shown(shown.command, "stage all\n  freeze\n  create\ntook 8 s\ndone\n")
    console.compare(page, "Start", 0, [given])
    for output in ("stage all\n", "took 8 s\nstage all\n", "stage one\ntook 8 s\n"):
        with pytest.raises(AssertionError, match="stage"):
            console.compare(page, "Start", 0, [Shown(shown.command, output)])
    assert page.read_text() == text
    monkeypatch.setenv("SWITCHYARD_RUNBOOK", "write")
    console.compare(page, "Start", 0, [given])
    assert page.read_text() == text.replace("3 s", "8 s")


@dataclass(frozen=True)
class Author:
    """Someone who types the page in a folder, with a broker of their own."""

    cluster: OwnBroker

    def type_all(self) -> None:
        for section, text in console.sections(PAGE.read_text()).items():
            block = 0
            for language, name, content in _BLOCK.findall(text):
                if language == "console":
                    self.type(section, block)
                    block += 1
                elif language == "diff":
                    path = self.cluster.folder / name
                    path.write_text(changed(path.read_text(), content))
                else:
                    (self.cluster.folder / name).write_text(content)

    def type(self, section: str, block: int) -> None:
        shown = console.blocks(PAGE.read_text(), section)[block]
        if [each.command for each in shown] == SET_UP:
            return
        found = [Shown(each.command, self.run(each.command)) for each in shown]
        console.compare(PAGE, section, block, found)
        now = console.blocks(PAGE.read_text(), section)[block]
        for given, expected in zip(found, now, strict=True):
            if given.command.startswith(EXACT):
                missing = {*expected.output.splitlines()} - {"...", *given.output.splitlines()}
                assert not missing, f"$ {given.command}\n{given.output}"

    def run(self, command: str) -> str:
        if command.startswith("switchyard "):
            said = self.cluster.cli(*shlex.split(command)[1:], COLUMNS="140", LOGNAME="ada")
            code, text = said.code, said.shown
            if command.startswith("switchyard follow "):
                # the partitions of a result come in any order
                text = "".join(sorted(text.splitlines(keepends=True)))
        else:
            assert command.count(_PORT) == ("bootstrap-server" in command)
            code, text = self.in_a_shell(command.replace(_PORT, self.port))
        assert code == 0, f"$ {command}\n{text}"
        return console.as_shown(text.replace(self.port, _PORT), self.cluster.settings)

    @property
    def port(self) -> str:
        return f":{self.cluster.settings.broker_port}"

    def in_a_shell(self, command: str) -> tuple[int, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.cluster.folder, env={**self.cluster.settings.child_environment(), "PATH": path},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout


@pytest.fixture
def author(tmp_path: Path, spark: SparkSession) -> Iterator[Author]:
    cluster = OwnBroker(tmp_path, "tutorial", lambda: spark)
    try:
        (tmp_path / ".switchyard").mkdir()
        (tmp_path / ".switchyard" / "jars").symlink_to(jars_dir())
        yield Author(cluster)
    finally:
        cluster.close()


@pytest.mark.e2e
@pytest.mark.spark
@pytest.mark.long
# the page says that it takes no longer
@pytest.mark.timeout(15 * 60)
def test_the_tutorial_does_what_it_says(author: Author) -> None:
    author.type_all()
