"""The examples of docs/writing-an-app.md that a reader can run: the test of an app, and records to try."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestration.catalog import find_apps
from orchestration.operations import trials
from pipelines.settings import Settings
from pipelines.testing import AppTest
from pipelines.testing.attempt import _shown, attempt
from tests.shared import console
from tests.shared.terminal import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "writing-an-app.md").read_text()

pytestmark = pytest.mark.spark


def test_the_test_of_the_page_passes(spark: SparkSession) -> None:
    [source] = re.findall(r"^```python\n(.*?)^```$", console.sections(PAGE)["A test"], re.MULTILINE | re.DOTALL)
    module: dict[str, Any] = {"__name__": "an example"}
    exec(compile(source, "writing-an-app.md", "exec"), module)
    [test] = [each for name, each in module.items() if name.startswith("test_")]
    test(spark)


def test_trying_the_records_of_the_page_shows_what_the_page_shows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_this_session(
        _: Settings, app: str, code: Path | None, given: Mapping[str, Any], batches: Sequence[list[Any]]
    ) -> list[dict[str, Any]]:
        assert code is None and not given
        [found] = [each for each in find_apps() if each.name == app]
        with AppTest(spark, found) as test:
            return [_shown(attempt(test, found, records, number)) for number, records in enumerate(batches, start=1)]

    monkeypatch.setattr(trials, "try_rows", in_this_session)
    [[file, tried]] = console.blocks(PAGE, "A test")
    assert file.command == "cat rows.jsonl"
    (tmp_path / "rows.jsonl").write_text(file.output)
    said = Terminal(Settings(state_dir=tmp_path / "state"), tmp_path).run(*shlex.split(tried.command)[1:])
    assert said.code == 0, said.text
    # rows come in any order
    assert sorted(said.out.splitlines()) == sorted(tried.output.splitlines()), said.out
