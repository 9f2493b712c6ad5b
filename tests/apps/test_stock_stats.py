"""Golden test of stock-stats: rows in, rows out, all written by hand."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from pipelines.apps.stock_stats import stock_stats
from pipelines.model import AppSettings
from tests.apps.mutants import mutant
from tests.apps.rows import at, frame, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

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
    ("FB", "2013-03-01T12:00:03Z", 30.01, 1, 30.01),
    ("FB", "2013-03-01T12:00:04Z", 30.01, 1, 30.01),
    ("FB", "2013-03-01T12:00:05Z", 30.01, 1, 30.01),
    ("FB", "2013-03-01T12:00:06Z", 30.01, 1, 30.01),
    ("FB", "2013-03-01T12:00:07Z", 30.01, 1, 30.01),
    ("IBM", "2013-03-01T12:00:03Z", 10.0, 3, 10.666667),
    ("IBM", "2013-03-01T12:00:04Z", 10.0, 4, 11.0),
    ("IBM", "2013-03-01T12:00:05Z", 10.0, 4, 11.0),
    ("IBM", "2013-03-01T12:00:06Z", 10.0, 4, 11.0),
    ("IBM", "2013-03-01T12:00:07Z", 10.0, 4, 11.0),
    ("IBM", "2013-03-01T12:00:08Z", 12.0, 1, 12.0),
]


@pytest.fixture(scope="module")
def trades(spark: SparkSession) -> DataFrame:
    rows = [(ticker, side, Decimal(price), at(seconds)) for ticker, side, price, seconds in TRADES]
    return frame(spark, stock_stats, "trades", rows)


def test_golden(trades: DataFrame) -> None:
    assert run(stock_stats, {"trades": trades}) == EXPECTED


def test_columns_and_definition(trades: DataFrame) -> None:
    result = stock_stats.function(trades=trades, settings=AppSettings(stock_stats.settings))
    assert result.dtypes == [
        ("ticker", "string"),
        ("window_start", "string"),
        ("lowest_ask", "decimal(8,2)"),
        ("trades", "bigint"),
        ("average_ask", "decimal(12,6)"),
    ]
    assert stock_stats.name == "stock-stats"
    assert stock_stats.watermark == "10 seconds"
    assert stock_stats.output_mode == "update"
    assert dict(stock_stats.settings) == {"window_s": 5, "advance_s": 1}


def test_settings_are_heeded(trades: DataFrame) -> None:
    assert run(stock_stats, {"trades": trades}, window_s=10, advance_s=10) == [
        ("FB", "2013-03-01T12:00:00Z", 30.01, 1, 30.01),
        ("IBM", "2013-03-01T12:00:00Z", 10.0, 4, 11.0),
    ]


def test_no_input_no_result(spark: SparkSession) -> None:
    assert run(stock_stats, {"trades": frame(spark, stock_stats, "trades", [])}) == []


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
        ("F.count(F.lit(1))", 'F.count_distinct("price")'),
        ("F.count(F.lit(1))", 'F.sum("offset")'),
        ('F.avg("price")', 'F.expr("percentile_disc(0.5) within group (order by price)")'),
        ('F.avg("price")', 'F.avg("price").cast("decimal(12,2)")'),
        ('"window.start"', '"window.end"'),
    ],
)
def test_a_fault_in_any_clause_is_seen(trades: DataFrame, there: str, instead: str) -> None:
    assert run(mutant(stock_stats, there, instead), {"trades": trades}) != EXPECTED
