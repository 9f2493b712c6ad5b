"""Golden test of top-stocks: days of daily-gains in, ranks out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.top_stocks import top_stocks
from pipelines.model import App
from pipelines.testing import AppFailed, AppTest
from tests.apps.lives import Life
from tests.apps.memory import Memory
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIFE = Life(reads="daily-gains", of_table=True, at_least=1)

DAY, NEXT = "2026-01-01", "2026-01-02"
# the day's gains in percent as they come, in two batches; None: the day of that ticker is deleted
FIRST: list[tuple[str, float | None]] = [("IBM", 1.5), ("FB", -2.0), ("GOOG", 3.25), ("IBM", 2.5), ("AAPL", 2.5)]
SECOND: list[tuple[str, float | None]] = [("GOOG", 0.0001), ("AAPL", None), ("MSFT", -5.0)]
# what is told of two ranks, and the table after it
TOLD_FIRST = {1: ("GOOG", 3.25), 2: ("AAPL", 2.5)}  # as much as IBM, and before it in the alphabet
TOLD_SECOND = {1: ("IBM", 2.5), 2: ("GOOG", 0.0001)}


@pytest.mark.spark
def test_golden(spark: SparkSession) -> None:
    with AppTest(spark, top_stocks, top=2) as test:
        for ticker, gain in FIRST:
            send(test, ticker, gain)
        send(test, "IBM", 7.0, NEXT)
        send(test, "FREE", "null", NEXT)
        assert told(test.run()) == {(DAY, rank): row for rank, row in TOLD_FIRST.items()} | {(NEXT, 1): ("IBM", 7.0)}
        test.restart()
        for ticker, gain in SECOND:
            send(test, ticker, gain)
        for key, value, _ in BAD:
            test.send("gains", value, key=key)
        send(test, "IBM", None, NEXT)
        batch = test.run()
        # a rank that nobody has any more is deleted
        assert told(batch) == {(DAY, rank): row for rank, row in TOLD_SECOND.items()} | {(NEXT, 1): (None, None)}
        assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
        assert set(test.table) == {(DAY, 1), (DAY, 2)}


KEY = {"ticker": "IBM", "day": DAY}
BAD: list[tuple[Any, Any, str]] = [
    (None, {"gain_percent": 1}, "the key is null"),
    ({"ticker": "IBM"}, {"gain_percent": 1}, "field day is missing in the key"),
    ("not json", {"gain_percent": 1}, "the key is not JSON: Expecting value at character 0"),
    (KEY, b"{", "the value is not JSON: Expecting property name enclosed in double quotes at character 1"),
    (KEY, {"gain_percent": "much"}, "field gain_percent is not decimal(16,4)"),
    (KEY, b"\xff", "the value is not UTF-8"),
    # two tickers, neither of which is "?"
    ({**KEY, "ticker": "\ud800"}, {"gain_percent": 99}, "field ticker has half of a surrogate pair in the key"),
    ({**KEY, "ticker": "\udfff"}, {"gain_percent": 98}, "field ticker has half of a surrogate pair in the key"),
]


def send(test: AppTest, ticker: str, gain: float | str | None, day: str = DAY) -> None:
    value = None if gain is None else {"gain_percent": None if gain == "null" else gain, "open": 1.0}
    test.send("gains", value, key={"ticker": ticker, "day": day})


def told(batch: Any) -> dict[tuple[str, int], Any]:
    return {(row["day"], row["rank"]): (row.get("ticker"), row.get("gain_percent")) for row in batch.rows}


@pytest.mark.spark
def test_a_gain_that_comes_twice_changes_nothing(spark: SparkSession) -> None:
    with AppTest(spark, top_stocks, top=2) as test:
        for ticker, gain in [*FIRST, *FIRST]:
            send(test, ticker, gain)
        assert told(test.run()) == {(DAY, rank): row for rank, row in TOLD_FIRST.items()}
        for ticker, gain in FIRST[2:]:
            send(test, ticker, gain)
        assert told(test.run()) == {}
        # so does a deletion
        for _ in range(2):
            send(test, "GOOG", None)
            found = told(test.run())
        assert found == {} and set(test.table) == {(DAY, 1), (DAY, 2)}


@pytest.mark.spark
def test_neither_an_odd_time_nor_a_large_value_makes_a_difference(spark: SparkSession) -> None:
    with AppTest(spark, top_stocks, top=3) as test:
        for ticker, time in (("IBM", "2099-01-01T00:00:00Z"), ("FB", "1996-01-01T00:00:00Z")):
            test.send("gains", {"gain_percent": len(ticker)}, key={"ticker": ticker, "day": DAY}, time=time)
        # 2 MB of another field, and a ticker of 2 MB on a day of its own
        test.send("gains", {"gain_percent": 1, "note": "x" * 2_000_000}, key={"ticker": "GOOG", "day": DAY})
        test.send("gains", {"gain_percent": 9}, key={"ticker": "x" * 2_000_000, "day": NEXT})
        batch = test.run()
        assert told(batch) == {(DAY, 1): ("IBM", 3.0), (DAY, 2): ("FB", 2.0), (DAY, 3): ("GOOG", 1.0)}
        [letter] = batch.dead_letters
        assert letter.key == b'{"day":"2026-01-02","rank":1}' and "too large" in letter.reason
        # a later change counts
        send(test, "FB", 5.0)
        batch = test.run()
        assert told(batch) == {(DAY, 1): ("FB", 5.0), (DAY, 2): ("IBM", 3.0)}
        assert batch.late == 0 and batch.watermark is None


@pytest.mark.spark
def test_at_least_one_is_told(spark: SparkSession) -> None:
    with AppTest(spark, top_stocks, top=0) as test, pytest.raises(AppFailed, match="top must be 1 or more"):
        test.run()


def ranked(app: App) -> list[dict[int, Any]]:
    """What the app's own processor tells of a day, in this process. The partition goes by the first letter, backwards."""
    memory, found, offset = Memory(lambda: app.function.__globals__["Ranks"](2), "day"), [], 0
    for batch in (FIRST, SECOND):
        rows = []
        for ticker, gain in batch:
            offset += 1
            place = {"partition": 100 - ord(ticker[0]), "offset": offset}
            known = {"is_known": gain is not None, "gain": round((gain or 0) * 10_000)}
            rows.append({"day": DAY, "ticker": ticker, **known, **place})
        found.append({row["rank"]: (row["ticker"], row["gain"] / 10_000) for row in memory.run(rows)})
    return found


EXPECTED = [TOLD_FIRST, TOLD_SECOND]


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("(-each[1], each[0])", "(each[1], each[0])"),
        ("(-each[1], each[0])", "-each[1]"),
        ("[: self._top]", ""),
        ("sorted(changes, key=itemgetter(4, 5))", "sorted(changes, key=itemgetter(4, 5), reverse=True)"),
        ("gains.pop(ticker, None)", "pass"),
        ("self._gains.update((gains,))", "pass"),
        ("before[rank : rank + 1] != after[rank : rank + 1]", "rank < 1"),
    ],
)
def test_a_fault_in_any_clause_is_seen(there: str, instead: str) -> None:
    assert ranked(top_stocks) == EXPECTED
    assert ranked(mutant(top_stocks, there, instead)) != EXPECTED
