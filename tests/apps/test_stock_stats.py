"""Golden test of stock-stats: rows in, rows out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.stock_stats import stock_stats
from pipelines.model import App
from pipelines.testing import AppTest
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=4_000, at_least=400)

TRADES = [
    # ticker, side, price, event time in seconds after noon
    ("IBM", "ask", "10.00", 7.5),
    ("IBM", "ask", "12.00", 8.0),  # on the edge: not in the window that ends there
    ("IBM", "bid", "1.00", 7.6),
    ("IBM", "ask", "11.00", 7.9),  # out of order
    ("IBM", "ask", "11.00", 7.9),  # twice: counted twice
    ("FB", "ask", "30.01", 7.5),
    ("FB", "hold", "1.00", 7.5),  # neither ask nor bid
    ("MSFT", "bid", "5.00", 7.5),  # only bids: no row
]

# 10.00 11.00 11.00 -> 32.00 / 3 = 10.666667; with 12.00 -> 44.00 / 4 = 11.00
EXPECTED = [
    ("FB", "2026-01-01T12:00:03Z", 30.01, 1, 30.01),
    ("FB", "2026-01-01T12:00:04Z", 30.01, 1, 30.01),
    ("FB", "2026-01-01T12:00:05Z", 30.01, 1, 30.01),
    ("FB", "2026-01-01T12:00:06Z", 30.01, 1, 30.01),
    ("FB", "2026-01-01T12:00:07Z", 30.01, 1, 30.01),
    ("IBM", "2026-01-01T12:00:03Z", 10.0, 3, 10.666667),
    ("IBM", "2026-01-01T12:00:04Z", 10.0, 4, 11.0),
    ("IBM", "2026-01-01T12:00:05Z", 10.0, 4, 11.0),
    ("IBM", "2026-01-01T12:00:06Z", 10.0, 4, 11.0),
    ("IBM", "2026-01-01T12:00:07Z", 10.0, 4, 11.0),
    ("IBM", "2026-01-01T12:00:08Z", 12.0, 1, 12.0),
]


def ask(test: AppTest, ticker: str, price: str, time: float | str) -> None:
    test.send("trades", {"side": "ask", "price": price}, key=ticker, time=time)


def found(spark: SparkSession, app: App, **settings: int) -> list[tuple[Any, ...]]:
    """Rows of the result, sorted: ticker, window start, lowest ask, trades, average ask."""
    with AppTest(spark, app, **settings) as test:
        for ticker, side, price, seconds in TRADES:
            test.send("trades", {"side": side, "price": price}, key=ticker, time=seconds)
        return sorted(tuple(row.values()) for row in test.run())


@pytest.mark.usefixtures("compiled")
def test_golden(spark: SparkSession) -> None:
    assert found(spark, stock_stats) == EXPECTED


def test_settings_are_heeded(spark: SparkSession) -> None:
    assert found(spark, stock_stats, window_s=10, advance_s=10) == [
        ("FB", "2026-01-01T12:00:00Z", 30.01, 1, 30.01),
        ("IBM", "2026-01-01T12:00:00Z", 10.0, 4, 11.0),
    ]


def test_a_late_trade_updates_its_windows_until_the_grace_is_over(spark: SparkSession) -> None:
    with AppTest(spark, stock_stats, advance_s=5) as test:
        ask(test, "IBM", "10.00", 7)
        test.run()
        # 12:00:20 less 10 s: the window that ends at 12:00:10 is open
        ask(test, "IBM", "11.00", 20)
        test.run()
        ask(test, "IBM", "8.00", 9.9)
        late = test.run()
        assert (late.rows, late.late) == ([], 1)

    with AppTest(spark, stock_stats, advance_s=5) as test:
        ask(test, "IBM", "10.00", 7)
        test.run()
        ask(test, "IBM", "11.00", 19.9)
        test.run()
        test.restart()
        ask(test, "IBM", "8.00", 9.9)
        assert test.run().rows == [
            {
                "ticker": "IBM",
                "window_start": "2026-01-01T12:00:05Z",
                "lowest_ask": 8.0,
                "trades": 2,
                "average_ask": 9.0,
            }
        ]


ASK = {"side": "ask", "price": "10.00"}
BAD: list[tuple[Any, Any, str]] = [
    ("IBM", "not json", "the value is not JSON: Expecting value at character 0"),
    ("IBM", {"side": "ask"}, "field price is missing"),
    ("IBM", {**ASK, "side": None}, "field side is missing"),
    ("IBM", {**ASK, "price": "much"}, "field price is not decimal(8,2)"),
    (None, ASK, "the key is null"),
    ("IBM", None, "the value is null"),
    ("IBM", b"\xff" * 2_000_000, "the value is not UTF-8"),
]


def test_a_bad_trade_is_a_dead_letter_and_an_odd_time_is_a_time(spark: SparkSession) -> None:
    with AppTest(spark, stock_stats, advance_s=5) as test:
        for key, value, _ in BAD:
            test.send("trades", value, key=key)
        # 2 MB of another field, and of the key, which is in the row
        test.send("trades", {**ASK, "note": "x" * 2_000_000}, key="IBM")
        test.send("trades", ASK, key="x" * 2_000_000)
        ask(test, "IBM", "11.00", "1996-01-01T00:00:00Z")
        ask(test, "IBM", "12.00", "2099-01-01T00:00:00Z")
        batch = test.run()
        assert sorted((row["window_start"], row["lowest_ask"], row["trades"]) for row in batch) == [
            ("1996-01-01T00:00:00Z", 11.0, 1),
            ("2026-01-01T12:00:00Z", 10.0, 1),
            ("2099-01-01T00:00:00Z", 12.0, 1),
        ]
        *malformed, large = batch.dead_letters
        assert [letter.reason for letter in malformed] == [reason for *_, reason in BAD]
        assert large.key is None and large.headers["key-start"].startswith(b'{"ticker":"xxx')
        # as in every app with a watermark: what comes after is late, until it is past 2099
        ask(test, "IBM", "10.00", 60)
        batch = test.run()
        assert (batch.rows, batch.late) == ([], 1)
        ask(test, "IBM", "10.00", "2099-01-01T00:00:05Z")
        assert len(test.run()) == 1


def test_columns_and_definition(spark: SparkSession) -> None:
    with AppTest(spark, stock_stats) as test:
        assert test.schema == {
            "ticker": "string",
            "window_start": "string",
            "lowest_ask": "decimal(8,2)",
            "trades": "bigint",
            "average_ask": "decimal(12,6)",
        }
    assert stock_stats.name == "stock-stats"
    assert stock_stats.watermark == "10 seconds"
    assert stock_stats.output_mode == "update"
    assert dict(stock_stats.settings) == {"window_s": 5, "advance_s": 1}


def test_no_input_no_result(spark: SparkSession) -> None:
    with AppTest(spark, stock_stats) as test:
        assert test.run().rows == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('.where(F.col("side") == "ask")', ""),
        ('F.col("side") == "ask"', 'F.col("side") != "bid"'),
        ('F.col("side") == "ask"', 'F.col("side") == "bid"'),
        ('.groupBy("ticker", ', '.groupBy(F.lit("IBM").alias("ticker"), '),
        ("{settings.window_s} seconds", "4 seconds"),
        (', f"{settings.advance_s} seconds"', ""),
        ("{settings.advance_s} seconds", "2 seconds"),
        ('F.window("event_time"', 'F.window(F.col("event_time") - F.expr("INTERVAL 1 MILLISECOND")'),
        ('F.min("price")', 'F.max("price")'),
        ("F.count(F.lit(1))", 'F.approx_count_distinct("price")'),
        ("F.count(F.lit(1))", 'F.sum("offset")'),
        ('F.avg("price")', 'F.min("price")'),
        ('F.avg("price")', 'F.avg("price").cast("decimal(12,2)")'),
        ('"window.start"', '"window.end"'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert found(spark, mutant(stock_stats, there, instead)) != EXPECTED
