"""Golden test of daily-gains: trades in, days out, all written by hand."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.daily_gains import daily_gains
from pipelines.model import App
from pipelines.testing import AppTest
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(reads="stock-stats", at_least=9)

TRADES = [
    # ticker, price, event time, in the order in which they come
    ("IBM", "10.50", "2026-01-01T12:00:00.000Z"),
    ("IBM", "12.00", "2026-01-01T15:00:00.000Z"),  # the highest
    ("IBM", "9.25", "2026-01-01T13:00:00.000Z"),  # the lowest
    ("IBM", "11.00", "2026-01-01T20:00:00.000Z"),  # the last of the day
    ("IBM", "10.00", "2026-01-01T11:59:59.999Z"),  # the first, though it comes after others
    ("IBM", "20.00", "2026-01-02T00:00:00.000Z"),  # the next day, in UTC
    ("IBM", "11.50", "2026-01-01T19:59:59.999Z"),  # not the last, though it comes last
    ("FB", "30.00", "2026-01-01T10:00:00.000Z"),  # at one millisecond: the first to come opens,
    ("FB", "31.00", "2026-01-01T10:00:00.000Z"),
    ("FB", "29.00", "2026-01-01T10:00:00.000Z"),  # the last to come closes
    ("GOOG", "0.00", "2026-01-01T10:00:00.000Z"),  # free: no gain in percent
    ("GOOG", "1.00", "2026-01-01T11:00:00.000Z"),
]
EXPECTED = {
    # open, close, lowest, highest, gain in percent
    ("IBM", "2026-01-01"): ("10.00", "11.00", "9.25", "12.00", "10.0000"),
    ("IBM", "2026-01-02"): ("20.00", "20.00", "20.00", "20.00", "0.0000"),
    ("FB", "2026-01-01"): ("30.00", "29.00", "29.00", "31.00", "-3.3333"),
    ("GOOG", "2026-01-01"): ("0.00", "1.00", "0.00", "1.00", None),
}
NAMES = ("open", "close", "lowest", "highest", "gain_percent")
FAR, OLD = "2099-01-01T00:00:00Z", "1996-01-01T00:00:00Z"


def days(test: AppTest) -> dict[Any, tuple[str | None, ...]]:
    """The table, its decimals as text."""
    places = {"gain_percent": "0.0001"}

    def text(row: dict[str, Any], name: str) -> str | None:
        value = row[name]
        return None if value is None else str(Decimal(str(value)).quantize(Decimal(places.get(name, "0.01"))))

    return {key: tuple(text(row, name) for name in NAMES) for key, row in test.table.items()}


def found(spark: SparkSession, app: App, cut: int | None = None) -> dict[Any, tuple[str | None, ...]]:
    """The days of TRADES. `cut`: how many trades come before a restart."""
    with AppTest(spark, app) as test:
        for number, (ticker, price, time) in enumerate(TRADES):
            if number == cut:
                test.run()
                test.restart()
            test.send("trades", {"side": "ask", "ticker": ticker, "price": price, "size": 5}, key=ticker, time=time)
        test.run()
        return days(test)


@pytest.mark.usefixtures("compiled")
def test_golden(spark: SparkSession) -> None:
    assert found(spark, daily_gains) == EXPECTED


def test_a_trade_that_comes_after_a_restart_changes_its_day_all_the_same(spark: SparkSession) -> None:
    assert found(spark, daily_gains, 3) == EXPECTED


BAD: list[tuple[Any, Any, str]] = [
    ("IBM", "not json", "the value is not JSON: Expecting value at character 0"),
    ("IBM", {"side": "ask"}, "field price is missing"),
    ("IBM", {"price": "dear"}, "field price is not decimal(8,2)"),
    ("IBM", {"price": "1234567.00"}, "field price is not decimal(8,2)"),
    (None, {"price": 1}, "the key is null"),
    ("IBM", None, "the value is null"),
    ("IBM", b"\xff" * 2_000_000, "the value is not UTF-8"),
]


def test_a_bad_trade_is_a_dead_letter_and_no_odd_time_makes_later_trades_late(spark: SparkSession) -> None:
    with AppTest(spark, daily_gains) as test:
        for key, value, _ in BAD:
            test.send("trades", value, key=key)
        for time in (FAR, OLD):
            test.send("trades", {"price": 3}, key="IBM", time=time)
        batch = test.run()
        assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
        # the same trade twice
        for _ in range(2):
            test.send("trades", {"price": 7, "note": "x" * 2_000_000}, key="IBM", time="2026-01-01T12:00:00Z")
        assert test.run().late == 0
        assert days(test) == {
            ("IBM", "2099-01-01"): ("3.00", "3.00", "3.00", "3.00", "0.0000"),
            ("IBM", "1996-01-01"): ("3.00", "3.00", "3.00", "3.00", "0.0000"),
            ("IBM", "2026-01-01"): ("7.00", "7.00", "7.00", "7.00", "0.0000"),
        }


def test_definition() -> None:
    assert daily_gains.name == "daily-gains"
    assert daily_gains.results[""].key == ("ticker", "day")
    assert daily_gains.output_mode == "update"


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('F.struct("event_time", "partition", "offset")', 'F.struct("partition", "offset")'),
        ('F.struct("event_time", "partition", "offset")', 'F.struct("event_time", "partition", -F.col("offset"))'),
        ('F.min_by("price", when)', 'F.max_by("price", when)'),
        ('F.max_by("price", when)', 'F.min_by("price", when)'),
        ('F.min("price")', 'F.max("price")'),
        ('F.max("price")', 'F.min("price")'),
        ('"yyyy-MM-dd"', '"yyyy-MM"'),
        ('"yyyy-MM-dd"', '"yyyy-DDD"'),
        ('* 100, F.col("open")', '* 100, F.col("close")'),
        ("* 100", "* 1"),
        ("F.round(gain, 4)", "F.round(gain, 1)"),
        ('groupBy("ticker", ', 'groupBy(F.lit("IBM").alias("ticker"), '),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert found(spark, mutant(daily_gains, there, instead)) != EXPECTED
