"""`switchyard dead-letters`: what it prints of letters, and how many it says there are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestration.commands import overview
from orchestration.operations.looking import dead_letters as looking
from orchestration.operations.looking.dead_letters import DeadLetters, Letter
from tests.test_cli import run

LETTER = Letter(
    offset=7, at_ms=1_796_000_000_000, reason="field price is missing", record="trades:0:647", result=None,
    key="IBM", key_bytes=3, value='{"side": "ask"}', value_bytes=15, replay=False,
)  # fmt: skip
FOUND = DeadLetters(release="stats.v1", generation=2, total=1_000, letters=(LETTER,))


@pytest.mark.parametrize(
    ("found", "result", "said"),
    [
        (FOUND, None, "shows the newest 1; stats.v1 has written 1,000 dead letters since generation 2 started"),
        (
            FOUND,
            "alerts",
            "shows the newest 1 of result alerts; stats.v1 has written 1,000 dead letters since generation 2 started, "
            "those of other kinds included",
        ),
        (
            replace(FOUND, total=None),
            None,
            "shows the newest 1; how many stats.v1 has written is unknown, because its progress topic is gone",
        ),
        (replace(FOUND, total=0, letters=()), None, "stats.v1 has no dead letters"),
        (replace(FOUND, letters=()), "alerts", "stats.v1 has no dead letters of result alerts"),
        # the topic was made anew, or its records were deleted
        (
            replace(FOUND, total=1, letters=()),
            None,
            "the topic of dead letters is empty, and may have been deleted meanwhile; stats.v1 has written 1 dead letter "
            "since generation 2 started",
        ),
    ],
    ids=["all", "a result", "unknown", "none", "none of a result", "lost"],
)
def test_it_says_how_many_there_are(found: DeadLetters, result: str | None, said: str) -> None:
    assert overview._in_all(found, result) == said


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Letter:
    """What the command finds: a letter whose key and value would change the terminal."""
    letter = replace(LETTER, key="\x1b[2J", key_bytes=4, value="a\nb", value_bytes=300)

    def found(*_: Any, **__: Any) -> DeadLetters:
        return replace(FOUND, letters=(letter,))

    monkeypatch.setattr(looking, "dead_letters", found)
    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: None)
    return letter


def test_it_prints_nothing_that_a_terminal_obeys(
    hostile: Letter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["dead-letters", "stats"], monkeypatch) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert r"\x1b[2J" in said and "trades:0:647" in said and "(300 bytes)" in said


def test_json_has_a_line_for_each(
    hostile: Letter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dead-letters", "stats", "--json"], monkeypatch) == 0
    [line] = capsys.readouterr().out.splitlines()
    shown = json.loads(line)
    assert (shown["release"], shown["offset"], shown["key"], shown["value"]) == ("stats.v1", 7, hostile.key, "a\nb")
