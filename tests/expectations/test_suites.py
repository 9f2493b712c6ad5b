"""Each suite passes a good result, and one planted defect turns one check red."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from expectations.names import suite_names
from expectations.suites import SuiteInputs, checks_of
from expectations.verdict import CheckResult, Outcome, Verdict
from pipelines.errors import BadUsage
from tests.expectations.tables import (
    LARGE_ORDERS,
    LARGE_ORDERS_DDL,
    STOCK_STATS,
    STOCK_STATS_DDL,
    WORD_COUNT,
    WORD_COUNT_DDL,
    Row,
    check,
    order,
    red,
    start,
    window,
)

AAPL = [row for row in STOCK_STATS if row[0] == "AAPL"]
MSFT = [row for row in STOCK_STATS if row[0] == "MSFT"]


def with_msft(**changes: Any) -> list[Row]:
    """The good table with the same change in each of MSFT's rows."""
    names = ("ticker", "window_start", "lowest_ask", "trades", "average_ask")
    return AAPL + [tuple({**dict(zip(names, row, strict=True)), **changes}.values()) for row in MSFT]


def without(*second: int) -> list[Row]:
    """The good table without AAPL's windows that start at these seconds."""
    return [row for row in STOCK_STATS if row not in [r for r in AAPL if r[1] in map(start, second)]]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("suite", "rows", "ddl"),
    [
        ("stock_stats", STOCK_STATS, STOCK_STATS_DDL),
        ("word_count", WORD_COUNT, WORD_COUNT_DDL),
        ("large_orders", LARGE_ORDERS, LARGE_ORDERS_DDL),
    ],
)
def test_a_good_result_passes(spark: SparkSession, tmp_path: Path, suite: str, rows: list[Row], ddl: str) -> None:
    verdict = check(spark, tmp_path, suite, rows, ddl, live_rows=len(rows))
    assert red(verdict) == set()
    assert verdict.ok
    assert (verdict.passed, verdict.skipped) == (len(verdict.results), 0)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("expected", "rows"),
    [
        ("not empty", []),
        ("window_start not null", [*STOCK_STATS, ("AAPL", None, Decimal("10.50"), 1, Decimal("10.75"))]),
        ("key unique", [*STOCK_STATS, MSFT[0]]),
        ("window_start readable", AAPL + [(r[0], r[1].replace("Z", ".000Z"), *r[2:]) for r in MSFT]),
        ("lowest_ask in range", with_msft(lowest_ask=Decimal("0.00"))),
        ("trades in range", with_msft(trades=0)),
        ("lowest ask not over average ask", with_msft(average_ask=Decimal("10.499998"))),
        ("windows complete", without(10)),
        ("windows complete", [*without(9), window("AAPL", 9, 2)]),
    ],
)
def test_a_defect_in_stock_stats_is_found(spark: SparkSession, tmp_path: Path, expected: str, rows: list[Row]) -> None:
    verdict = check(spark, tmp_path, "stock_stats", rows, STOCK_STATS_DDL)
    assert red(verdict) == {expected}
    assert not verdict.ok
    assert len(verdict.failures) == 1 and expected in verdict.failures[0]


@pytest.mark.spark
def test_a_field_of_a_window_that_is_not_there_is_found(spark: SparkSession, tmp_path: Path) -> None:
    names = ("ticker", "lowest_ask", "trades", "average_ask")
    rows = AAPL + [row for name in names for row in with_msft(**{"ticker": name, name: None}) if row not in AAPL]
    assert red(check(spark, tmp_path, "stock_stats", rows, STOCK_STATS_DDL)) == {f"{name} not null" for name in names}


@pytest.mark.spark
def test_an_average_of_nothing_is_out_of_range_and_under_the_lowest(spark: SparkSession, tmp_path: Path) -> None:
    rows = with_msft(average_ask=Decimal("0"))
    assert red(check(spark, tmp_path, "stock_stats", rows, STOCK_STATS_DDL)) == {
        "average_ask in range",
        "lowest ask not over average ask",
    }


@pytest.mark.spark
def test_windows_start_at_whole_multiples(spark: SparkSession, tmp_path: Path) -> None:
    settings = {"window_s": 10, "advance_s": 5}
    rows = [window("AAPL", 5, 1), window("AAPL", 10, 1), window("AAPL", 13, 1)]
    assert red(check(spark, tmp_path, "stock_stats", rows, STOCK_STATS_DDL, app_settings=settings)) == {
        "windows aligned"
    }


@pytest.mark.spark
@pytest.mark.parametrize(
    "ddl",
    [
        STOCK_STATS_DDL.replace("decimal(8,2)", "decimal(9,2)"),
        STOCK_STATS_DDL + ", highest_ask decimal(8,2)",
    ],
)
def test_another_schema_is_found(spark: SparkSession, tmp_path: Path, ddl: str) -> None:
    rows = [(*row, *([None] if "highest" in ddl else [])) for row in STOCK_STATS]
    assert red(check(spark, tmp_path, "stock_stats", rows, ddl)) == {"schema"}


@pytest.mark.spark
def test_a_check_that_can_not_be_evaluated_is_errored_and_stops_a_promotion(
    spark: SparkSession, tmp_path: Path
) -> None:
    verdict = check(spark, tmp_path, "word_count", [("lambda",)], "word string")
    outcomes = {result.name: result.outcome for result in verdict.results}
    assert outcomes["schema"] == "failed"
    assert outcomes["count in range"] == outcomes["count not null"] == "errored"
    assert (verdict.failed, verdict.errored) == (1, 2)
    assert not verdict.ok
    assert any("could not be evaluated" in line and "count" in line for line in verdict.failures)


def test_one_that_could_not_be_evaluated_stops_a_promotion_by_itself() -> None:
    def verdict(*outcomes: Outcome) -> Verdict:
        results = tuple(CheckResult(name=outcome, outcome=outcome, detail="") for outcome in outcomes)
        return Verdict(suite="s", release="a.v1", generation=1, rows=1, results=results)

    assert verdict("passed", "skipped").ok
    assert not verdict("passed", "errored").ok
    assert not verdict("passed", "failed").ok
    assert not verdict("skipped").ok


@pytest.mark.spark
@pytest.mark.parametrize("live_rows", [15, 22])
def test_the_volume_is_held_against_the_live_release(spark: SparkSession, tmp_path: Path, live_rows: int) -> None:
    assert len(STOCK_STATS) == 18
    verdict = check(spark, tmp_path, "stock_stats", STOCK_STATS, STOCK_STATS_DDL, live_rows=live_rows)
    assert red(verdict) == {"volume against live"}


@pytest.mark.spark
def test_without_a_live_release_the_volume_is_skipped_and_says_so(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "stock_stats", STOCK_STATS, STOCK_STATS_DDL)
    (volume,) = [result for result in verdict.results if result.name == "volume against live"]
    assert volume.outcome == "skipped"
    assert "no live release" in volume.detail
    assert verdict.skipped == 1 and verdict.passed == len(verdict.results) - 1


@pytest.mark.spark
@pytest.mark.parametrize(
    ("expected", "rows"),
    [
        ("not empty", []),
        ("word not null", [*WORD_COUNT, (None, 3)]),
        ("count not null", [*WORD_COUNT, ("none", None)]),
        ("key unique", [*WORD_COUNT, ("lambda", 4)]),
        ("word form", [*WORD_COUNT, ("Lambda", 4)]),
        ("the not counted", [*WORD_COUNT, ("the", 4)]),
        ("count in range", [*WORD_COUNT, ("none", 0)]),
    ],
)
def test_a_defect_in_word_count_is_found(spark: SparkSession, tmp_path: Path, expected: str, rows: list[Row]) -> None:
    assert red(check(spark, tmp_path, "word_count", rows, WORD_COUNT_DDL)) == {expected}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("expected", "row"),
    [
        ("each order once", order(2)),
        ("amount in range", order(9, "10000.00")),
        ("ordered_at readable", order(9, ordered_at="2024-01-01 00:00:00")),
    ],
)
def test_a_defect_in_large_orders_is_found(spark: SparkSession, tmp_path: Path, expected: str, row: Row) -> None:
    assert red(check(spark, tmp_path, "large_orders", [*LARGE_ORDERS, row], LARGE_ORDERS_DDL)) == {expected}


@pytest.mark.spark
def test_a_field_of_an_order_that_is_not_there_is_found(spark: SparkSession, tmp_path: Path) -> None:
    # all but the customer, the first
    places = range(1, len(order(1)))
    rows = [*LARGE_ORDERS, *[(*order(i + 10)[:i], None, *order(i + 10)[i + 1 :]) for i in places]]
    required = ["order_id", "sales_person", "amount", "ordered_at", "topic", "partition", "offset"]
    assert red(check(spark, tmp_path, "large_orders", rows, LARGE_ORDERS_DDL)) == {
        f"{name} not null" for name in required
    }


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("stock-stats", "the nearest is stock_stats.*module whose name ends in _suite"),
        ("of_mine_suite", "or write it beside the app, as of_mine_suite.py"),
    ],
)
def test_an_unknown_suite_is_named_with_the_nearest_and_where_to_write_it(name: str, fix: str) -> None:
    with pytest.raises(BadUsage, match=rf"no suite '{name}'\n.*{fix}"):
        checks_of(name, SuiteInputs(app_settings={}))


@pytest.mark.parametrize("name", suite_names())
def test_names_of_checks_are_unique(name: str) -> None:
    names = [one.name for one in checks_of(name, SuiteInputs(app_settings={}, live_rows=1))]
    assert len(set(names)) == len(names)
