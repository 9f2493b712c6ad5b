"""Golden test of browser-windows: actions in, windows out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.browser_windows import browser_windows
from pipelines.model import App
from pipelines.testing import AppFailed, AppTest, Batch
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=4_000, at_least=600)

# browser, seconds after noon. A window from s has what is at s or later, and before s + 5
FIRST = [("a", 0), ("a", 4.999), ("b", 1.5), ("a", 5), ("a", 1.5), ("a", 20), ("a", 1.5)]
FIRST_TOLD = {
    # start of the window, in seconds after noon -> actions
    "a": {-4: 1, -2: 3, 0: 4, 2: 2, 4: 2, 16: 1, 18: 1, 20: 1},
    "b": {-2: 1, 0: 1},
}
# the watermark is at 10. Up to 10 s late: of the windows that end after 10
SECOND = [("a", 11), ("a", 8), ("a", 3)]
SECOND_TOLD = {"a": {6: 1, 8: 2, 10: 1}}
# the window from 4 is over, and so are those from 0 and 2
LATE = 3

Windows = dict[str, dict[int, int]]


def start(second: int) -> str:
    return f"2026-01-01T12:00:{second:02}Z" if second >= 0 else f"2026-01-01T11:59:{60 + second:02}Z"


def by_start(windows: Windows) -> dict[tuple[str, str], int]:
    return {(name, start(second)): actions for name, each in windows.items() for second, actions in each.items()}


def told(batch: Batch) -> dict[tuple[str, str], int]:
    return {(row["browser_hash"], row["window_start"]): row["actions"] for row in batch}


def act(test: AppTest, browser: str, time: float | str) -> None:
    test.send("actions", {"action": "click"}, key=browser, time=time)


def found(spark: SparkSession, app: App) -> tuple[Any, Any, int]:
    """What is told of FIRST and, after a restart, of SECOND; how many rows were late."""
    with AppTest(spark, app) as test:
        for browser, second in FIRST:
            act(test, browser, second)
        first = told(test.run())
        test.restart()
        for browser, second in SECOND:
            act(test, browser, second)
        batch = test.run()
        return first, told(batch), batch.late


EXPECTED = (by_start(FIRST_TOLD), by_start(SECOND_TOLD), LATE)


def test_golden(spark: SparkSession) -> None:
    assert found(spark, browser_windows) == EXPECTED


def replayed(spark: SparkSession, app: App, clock: str) -> tuple[dict[str, int], int]:
    """The windows of seven actions in an hour, read in one batch; how many were late."""
    with AppTest(spark, app, clock=clock) as test:
        # not in order, and one that is an hour late
        for minute in (0, 20, 10, 30, 50, 60, 40):
            act(test, "a", minute * 60)
        test.run()
        act(test, "b", 0)
        late = test.run().late
        return {row_start: row["actions"] for (name, row_start), row in test.table.items() if name == "a"}, late


def test_on_a_replay_the_wall_clock_makes_one_burst_of_an_action_every_ten_minutes(spark: SparkSession) -> None:
    windows, late = replayed(spark, browser_windows, "event")
    # 3600 s is in 3 windows, as each of the others
    assert set(windows.values()) == {1} and len(windows) == 7 * 3
    assert late == 3
    misleading, late = replayed(spark, browser_windows, "wall")
    assert set(misleading.values()) == {7} and len(misleading) in (2, 3)
    assert not set(misleading) & set(windows)
    assert late == 0


BAD: list[tuple[Any, Any, str]] = [
    ("a", "not json", "the value is not JSON: Expecting value at character 0"),
    ("a", {"note": "no action"}, "field action is missing"),
    ("a", {"action": None}, "field action is missing"),
    ("a", "1", "the value is a number, not a JSON object"),
    (None, {"action": "click"}, "the key is null"),
    ("a", None, "the value is null"),
    ("a", b"\xff" * 2_000_000, "the value is not UTF-8"),
]


def test_a_bad_action_is_a_dead_letter_and_an_odd_time_is_a_time(spark: SparkSession) -> None:
    with AppTest(spark, browser_windows, advance_s=5) as test:
        for key, value, _ in BAD:
            test.send("actions", value, key=key)
        # the same action twice, with 2 MB
        for _ in range(2):
            test.send("actions", {"action": "x" * 2_000_000}, key="a")
        # an action that is no text is one all the same
        test.send("actions", {"action": {"kind": "click"}}, key="a")
        act(test, "a", "1996-01-01T00:00:00Z")
        act(test, "a", "2099-01-01T00:00:00Z")
        batch = test.run()
        assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
        assert told(batch) == {
            ("a", "2026-01-01T12:00:00Z"): 3,
            ("a", "1996-01-01T00:00:00Z"): 1,
            ("a", "2099-01-01T00:00:00Z"): 1,
        }
        # as in every app with a watermark: what comes after is late, until it is past 2099
        act(test, "a", 60)
        batch = test.run()
        assert (batch.rows, batch.late) == ([], 1)


def test_an_unknown_clock_is_refused(spark: SparkSession) -> None:
    with (
        AppTest(spark, browser_windows, clock="cuckoo") as test,
        pytest.raises(AppFailed, match="clock must be event or wall, not cuckoo"),
    ):
        test.run()


def test_definition() -> None:
    assert browser_windows.name == "browser-windows"
    assert browser_windows.results[""].key == ("browser_hash", "window_start")
    assert browser_windows.output_mode == "update"
    assert browser_windows.watermark == "10 seconds"
    assert dict(browser_windows.settings) == {"window_s": 5, "advance_s": 2, "clock": "event"}
    # what a replay does not repeat must not be compared
    assert browser_windows.comparable_with({}) == "exact"
    assert browser_windows.comparable_with({"clock": "wall"}) == "no"


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("{settings.window_s} seconds", "4 seconds"),
        (', f"{settings.advance_s} seconds"', ""),
        ("{settings.advance_s} seconds", "1 seconds"),
        ('"event": F.col("event_time")', '"event": F.current_timestamp()'),
        ('.groupBy("browser_hash", ', '.groupBy(F.lit("a").alias("browser_hash"), '),
        ("F.count(F.lit(1))", 'F.approx_count_distinct("action")'),
        ('"window.start"', '"window.end"'),
        ('watermark="10 seconds"', 'watermark="9 seconds"'),
        ('watermark="10 seconds"', 'watermark="20 seconds"'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert found(spark, mutant(browser_windows, there, instead)) != EXPECTED


@pytest.mark.long
def test_a_wall_clock_that_is_none_is_seen(spark: SparkSession) -> None:
    changed = mutant(browser_windows, '"wall": F.current_timestamp()', '"wall": F.col("event_time")')
    assert set(replayed(spark, changed, "wall")[0].values()) == {1}


def test_a_replay_by_the_wall_clock_that_would_be_compared_is_seen() -> None:
    changed = mutant(browser_windows, '"no" if settings.clock == "wall" else "exact"', '"exact"')
    assert changed.comparable_with({"clock": "wall"}) != browser_windows.comparable_with({"clock": "wall"})
