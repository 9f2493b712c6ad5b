"""A diff of apps with several results: its counts, what a delta needs of it, and how it is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestration.commands.show import show_comparison
from orchestration.defs.report import comparison_markdown
from orchestration.operations.comparing.evidence import Comparison, narrowed
from orchestration.operations.comparing.tags import of_results, prefix, split, tagged
from orchestration.operations.procedures.approve import _worse
from pipelines.model.positions import ResultPosition
from tests.operations.builders import evidence

TABLE, STREAM = "a.v1.g1.counts", "a.v1.g1.alerts"
COUNTS = Comparison(only_live=1, only_new=2, changed=3, identical=94, columns={"n": 3})
ALERTS = Comparison(only_live=5, only_new=0, changed=0, identical=95)
BOTH = Comparison.together({"counts": COUNTS, "alerts": ALERTS})
NAMED = replace(BOTH, live_late_dropped=4, new_late_dropped=7).of_releases("a.v2", "a.v1")


def test_the_counts_of_several_results_are_added_and_those_of_each_are_kept() -> None:
    assert (BOTH.only_live, BOTH.only_new, BOTH.changed, BOTH.identical, BOTH.total) == (6, 2, 3, 189, 200)
    assert BOTH.ratio == 11 / 200
    assert Comparison.from_json(BOTH.as_json()) == BOTH
    assert BOTH.only(frozenset({"counts"})).results == {"counts": COUNTS}
    # an app with one result is as before
    assert Comparison.together({"": COUNTS}) == COUNTS and "results" not in COUNTS.as_json()
    assert COUNTS.only(frozenset({""})) == COUNTS


def test_a_delta_is_judged_by_the_tables_alone() -> None:
    there = ResultPosition(topics={TABLE: {0: 9}, STREAM: {0: 7}})
    found = evidence("a.v1", "a.v2").model_copy(
        update={"live_result": there, "new_result": there, "summary": {**BOTH.as_json(), "new_late_dropped": 4}}
    )
    part = narrowed(found, frozenset({"counts"}))
    assert part.live_result.topics == {TABLE: {0: 9}} == part.new_result.topics
    seen = Comparison.of(part)
    assert (seen.total, seen.changed) == (100, 3)
    assert narrowed(found, frozenset({"counts", "alerts"})) is found


def test_keys_carry_their_result_s_name_where_there_are_several() -> None:
    key = '{"k":"a\\\\tb"}'
    assert tagged("counts", {key: "1"}) == {"counts\t" + key: "1"} and tagged("", {key: "1"}) == {key: "1"}
    assert split(prefix("counts") + key) == ("counts", key) and split(key) == ("", key)
    changes = [("counts\t" + key, "1"), ("alerts\t" + key, None)]
    assert list(of_results(changes, frozenset({"counts"}))) == changes[:1]
    assert list(of_results([(key, "1")], frozenset({""}))) == [(key, "1")]


def test_a_result_that_is_worse_is_seen_beside_a_large_one() -> None:
    large = Comparison(only_live=0, only_new=0, changed=100, identical=900)
    shown = Comparison.together({"large": large, "small": Comparison.none()})
    small = Comparison(only_live=1, only_new=0, changed=0, identical=9)
    now = Comparison.together({"large": large, "small": small})
    assert _worse(shown, shown, None) == []
    [said] = _worse(shown, now.of_releases("a.v1", "a.v2"), None)
    assert said.startswith("small: 1 only in a.v1")


def test_each_result_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show_comparison(NAMED)
    shown = capsys.readouterr().out
    assert shown.index("counts") < shown.index("column n") < shown.index("alerts") < shown.index("dropped as late")
    text = comparison_markdown(NAMED)
    assert text.index("### counts") < text.index("column n") < text.index("### alerts") < text.index("dropped as late")


def cells(text: str, border: str) -> list[list[str]]:
    """The rows of the tables in `text`."""
    return [
        [cell.strip() for cell in line.split(border)[1:-1]] for line in text.splitlines() if line.startswith(border)
    ]


def test_counts_and_columns_have_the_names_of_the_releases(capsys: pytest.CaptureFixture[str]) -> None:
    """`switchyard diff a.v1` compares a live release with its standby: what is only in a.v1 is not only live."""
    sample = {"key": {"k": "ibm"}, "live": None, "new": {"n": 1}}
    one = replace(COUNTS, samples=(sample,), only_new_columns=("least",), live_late_dropped=4).of_releases(
        "a.v2", "a.v1"
    )
    late = [["dropped as late by a.v2", "4"], ["dropped as late by a.v1", "0"]]
    show_comparison(one)
    shown = capsys.readouterr().out
    assert cells(shown, "│") == [
        ["only in a.v2", "1"],
        ["only in a.v1", "2"],
        ["changed", "3"],
        ["column n", "3"],
        ["identical", "94"],
        *late,
        ["k=ibm", "-", "n=1"],
    ]
    assert cells(shown, "┃") == [["", "keys"], ["key", "a.v2", "a.v1"]]
    assert "not compared, only in the result of a.v1: least" in shown
    rows = cells(comparison_markdown(one), "|")
    assert rows[2:8] == [
        ["identical", "94"], ["changed", "3"], ["column n", "3"], ["only in a.v2", "1"], ["only in a.v1", "2"], late[0]
    ]  # fmt: skip
    assert ["key", "a.v2", "a.v1"] in rows
    assert "only in the result of a.v1" in comparison_markdown(one)
    assert one.in_words() == "3 changed, 1 only in a.v2, 2 only in a.v1, 94 identical"


def test_late_rows_of_several_results_are_told_once() -> None:
    rows = cells(comparison_markdown(NAMED), "|")
    assert [row for row in rows if row[0].startswith("dropped")] == [
        ["dropped as late by a.v2", "4"],
        ["dropped as late by a.v1", "7"],
    ]


def test_the_registry_does_not_keep_the_names_twice() -> None:
    assert not {"live", "new"} & (BOTH.as_json().keys() | BOTH.as_json()["results"]["counts"].keys())
    found = evidence("a.v2", "a.v1", summary=BOTH.as_json())
    assert Comparison.of(found) == BOTH.of_releases("a.v2", "a.v1")
    # scripts are told which release each field is about
    said = Comparison.of(found).as_json()
    assert (said["live"], said["new"]) == ("a.v2", "a.v1")
