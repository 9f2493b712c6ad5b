"""The demo's versions of stock-stats differ from the repository's in what they are to show, and in nothing else."""

from __future__ import annotations

import importlib
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from pipelines.apps.stock_stats import stock_stats
from pipelines.model import App
from tests.apps.rows import at, frame, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def version(number: int) -> App:
    app = importlib.import_module(f"demo.v{number}.stock_stats").stock_stats
    assert isinstance(app, App)
    return app


@pytest.mark.parametrize("number", [1, 3])
def test_definition_is_the_same(number: int) -> None:
    other = version(number)
    names = ("name", "inputs", "result", "suite", "watermark", "settings", "comparable")
    assert {n: getattr(other, n) for n in names} == {n: getattr(stock_stats, n) for n in names}


def test_version_1_takes_bids_for_asks(spark: SparkSession) -> None:
    trades = frame(
        spark,
        stock_stats,
        "trades",
        [("IBM", "ask", Decimal("10.00"), at(0)), ("IBM", "bid", Decimal("4.00"), at(0))],
    )
    assert run(version(1), {"trades": trades}, advance_s=5) == [("IBM", "2013-03-01T12:00:00Z", 4.0, 2, 7.0)]
    assert run(stock_stats, {"trades": trades}, advance_s=5) == [("IBM", "2013-03-01T12:00:00Z", 10.0, 1, 10.0)]


def test_version_3_has_a_lowest_ask_over_the_average(spark: SparkSession) -> None:
    trades = frame(
        spark,
        stock_stats,
        "trades",
        [("IBM", "ask", Decimal("10.00"), at(0)), ("IBM", "bid", Decimal("9.00"), at(0))],
    )
    assert run(version(3), {"trades": trades}, advance_s=5) == [("IBM", "2013-03-01T12:00:00Z", 10.0, 1, 5.0)]
