"""Golden test of shoe-store: events in, the inventory and the totals out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.shoe_store import shoe_store
from pipelines.model import App
from pipelines.testing import AppTest
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# kind, color, pairs, price; in two batches
FIRST = [
    ("shipment", "red", 10, 60.0),
    ("sale", "red", 3, 99.9),
    ("return", "red", 1, 99.9),
    ("sale", "blue", 2, 80.0),  # before any came in
    ("theft", "red", 5, 0.0),
]
SECOND = [
    ("sale", "red", 1, 89.9),
    ("shipment", "blue", 1, 50.0),
    ("shipment", "white", 4, 70.0),
]
AFTER_FIRST: tuple[dict[str, Any], dict[str, Any]] = (
    {
        "red": {"in_stock": 8, "sold": 2, "taken": 199.80, "oversold": False},
        "blue": {"in_stock": -2, "sold": 2, "taken": 160.00, "oversold": True},
    },
    {"in_stock": 6, "taken": 359.80, "transactions": 3},
)
AFTER_SECOND: tuple[dict[str, Any], dict[str, Any]] = (
    {
        "red": {"in_stock": 7, "sold": 3, "taken": 289.70, "oversold": False},
        "blue": {"in_stock": -1, "sold": 2, "taken": 160.00, "oversold": True},
        "white": {"in_stock": 4, "sold": 0, "taken": 0.00, "oversold": False},
    },
    {"in_stock": 10, "taken": 449.70, "transactions": 4},
)


def send(test: AppTest, events: list[tuple[str, str, int, float]]) -> None:
    for kind, color, pairs, price in events:
        test.send("events", {"kind": kind, "color": color, "count": pairs, "price": price})


def tables(test: AppTest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Color -> its row, and the row of the store."""
    assert list(test.tables["totals"]) == [("all",)]
    return {color: row for (color,), row in test.tables["inventory"].items()}, test.tables["totals"]["all",]


def run(spark: SparkSession, app: App) -> list[Any]:
    with AppTest(spark, app) as test:
        found = []
        for events in (FIRST, SECOND):
            send(test, events)
            test.run()
            found.append(tables(test))
        return found


def test_golden(spark: SparkSession) -> None:
    assert run(spark, shoe_store) == [AFTER_FIRST, AFTER_SECOND]


def test_a_batch_tells_only_what_changed_and_what_is_bad_is_a_dead_letter(spark: SparkSession) -> None:
    good = {"kind": "sale", "color": "red", "count": 1, "price": 10.0}
    with AppTest(spark, shoe_store) as test:
        send(test, FIRST)
        test.run()
        test.restart()
        bad = [b"{", {**good, "price": None}, {**good, "count": "one"}, {"kind": "sale"}, None]
        for value in bad:
            test.send("events", value)
        for time in ("2099-01-01T00:00:00Z", "1996-01-01T00:00:00Z"):
            test.send("events", good, time=time)
        batch = test.run()
        assert [row["color"] for row in batch["inventory"]] == ["red"]
        assert (batch["inventory"][0]["in_stock"], batch["totals"][0]["transactions"]) == (6, 5)
        assert len(batch.dead_letters) == len(bad) and batch.late == 0
        test.send("events", {**good, "color": "x" * 2_000_000})
        assert len(test.run()["inventory"]) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('.isin("shipment", "sale", "return")', ".isNotNull()"),
        ('.when(F.col("kind") == "return", -1)', '.when(F.col("kind") == "return", 1)'),
        ('-F.col("count")).otherwise', 'F.col("count")).otherwise'),
        ('* F.col("price")', ""),
        ("(sign != 0)", "F.lit(True)"),
        ('F.col("in_stock") < 0', 'F.col("in_stock") < -1'),
        ('F.array("color", F.lit(None))', 'F.array("color", "color")'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    try:
        seen = run(spark, mutant(shoe_store, there, instead))
    except (AssertionError, KeyError):
        return
    assert seen != [AFTER_FIRST, AFTER_SECOND]
