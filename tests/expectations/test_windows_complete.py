"""The rule for missing windows, on many tickers of random trades at once: dense, sparse, with late ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from pyspark.sql import SparkSession

from expectations.rows import ExpectNoRows
from expectations.suites.stock_stats import windows_complete
from tests.expectations.tables import start

TICKERS = 150
WINDOW_S = 5

Windows = Mapping[int, int]


def windows_of(trades: list[int], missed: Mapping[int, int] | None = None) -> dict[int, int]:
    """Window start -> trades in it; trade number i was late for its first `missed[i]` windows."""
    found: Counter[int] = Counter()
    for i, second in enumerate(trades):
        late = (missed or {}).get(i, 0)
        found.update(range(second - WINDOW_S + 1 + late, second + 1))
    return dict(found)


def random_trades(seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(5, 55) for _ in range(chance.choice([1, 2, 4, 8, 30, 200]))]


def uneven(spark: SparkSession, tables: Mapping[str, Windows], late_dropped: int = 0) -> dict[str, int]:
    """Ticker -> runs of it that the rule is against."""
    rows = [(ticker, start(second), trades) for ticker, w in tables.items() for second, trades in w.items()]
    spark.createDataFrame(rows, "ticker string, window_start string, trades bigint").createOrReplaceTempView("w")
    made = windows_complete(WINDOW_S, 1, late_dropped).expectation
    assert made is not None
    expectation = made()
    assert isinstance(expectation, ExpectNoRows)
    found = spark.sql(str(expectation.unexpected_rows_query).format(batch="w")).collect()
    return dict(Counter(row["ticker"] for row in found))


@pytest.mark.spark
def test_whatever_was_traded_no_window_is_missed(spark: SparkSession) -> None:
    assert uneven(spark, {f"t{seed}": windows_of(random_trades(seed)) for seed in range(TICKERS)}) == {}


@pytest.mark.spark
def test_any_missing_window_is_found(spark: SparkSession) -> None:
    tables = {}
    for seed in range(TICKERS):
        windows = windows_of(random_trades(seed))
        del windows[random.Random(seed).choice(sorted(windows))]
        tables[f"t{seed}"] = windows
    assert set(uneven(spark, tables)) == set(tables)


@pytest.mark.spark
def test_any_missing_trade_is_found(spark: SparkSession) -> None:
    tables = {}
    for seed in range(TICKERS):
        windows = windows_of([*random_trades(seed), 30])
        windows[random.Random(seed).randint(26, 30)] += 1
        tables[f"t{seed}"] = windows
    assert set(uneven(spark, tables)) == set(tables)


@pytest.mark.spark
def test_rows_dropped_as_late_explain_no_more_than_their_number(spark: SparkSession) -> None:
    tables: dict[str, Windows] = {}
    dropped = 0
    for seed in range(TICKERS):
        trades = random_trades(seed)
        missed = {i: random.Random(seed).randint(1, 5) for i in range(0, len(trades), 7)}
        dropped += sum(missed.values())
        tables[f"t{seed}"] = windows_of(trades, missed)
    assert uneven(spark, tables, late_dropped=dropped) == {}
    assert uneven(spark, tables) != {}
    # one window of a dense run lost, one drop to explain it: too few
    dense = windows_of(list(range(10, 40)))
    del dense[20]
    assert uneven(spark, {"dense": dense}, late_dropped=1) == {"dense": 2}


def test_windows_that_do_not_tile_time_are_skipped_with_the_reason() -> None:
    check = windows_complete(5, 2, 0)
    assert check.expectation is None
    assert "do not tile" in check.detail
