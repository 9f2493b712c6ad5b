"""The demo's versions of stock-stats differ from the repository's in what they are to show, and in nothing else."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

from pipelines.apps.stock_stats import stock_stats
from pipelines.model import App
from pipelines.testing import AppTest

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
    names = ("name", "inputs", "results", "watermark", "settings", "comparable")
    assert {n: getattr(other, n) for n in names} == {n: getattr(stock_stats, n) for n in names}


def of_an_ask_and_a_bid(spark: SparkSession, app: App, bid: str) -> list[float]:
    """Lowest ask, trades and average ask of one window with an ask of 10.00 and that bid."""
    with AppTest(spark, app, advance_s=5) as test:
        test.send("trades", {"side": "ask", "price": "10.00"}, key="IBM")
        test.send("trades", {"side": "bid", "price": bid}, key="IBM")
        [row] = test.run().rows
    return [row[name] for name in ("lowest_ask", "trades", "average_ask")]


def test_version_1_takes_bids_for_asks(spark: SparkSession) -> None:
    assert of_an_ask_and_a_bid(spark, version(1), "4.00") == [4.0, 2, 7.0]
    assert of_an_ask_and_a_bid(spark, stock_stats, "4.00") == [10.0, 1, 10.0]


def test_version_3_has_a_lowest_ask_over_the_average(spark: SparkSession) -> None:
    assert of_an_ask_and_a_bid(spark, version(3), "9.00") == [10.0, 1, 5.0]
