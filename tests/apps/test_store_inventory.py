"""Golden test of store-inventory: events in, stocks out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.store_inventory import store_inventory
from pipelines.model import App
from pipelines.testing import AppTest, Batch
from tests.apps.lives import Life
from tests.apps.memory import Memory
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("frames_of_two")]

LIFE = Life(records=4_000, at_least=50)

FIRST = [
    # store, SKU, quantity
    ("s1", "shirt", 5),
    ("s2", "shirt", 1),
    ("s1", "hat", 3),
    ("s1", "shirt", -2),
    ("s1", "shirt", -1),
    ("s1", "shirt", -1),  # twice: both count
]
SECOND = [
    ("s1", "shoe", 1),
    ("s1", "apron", 4),
    ("s1", "hat", -3),  # sold out
    ("s3", "hat", -2),  # less than nothing
]
EXPECTED = [
    # what is told of each batch, its SKUs in order
    {"s1": [("hat", 3), ("shirt", 1)], "s2": [("shirt", 1)]},
    {"s1": [("apron", 4), ("hat", 0), ("shirt", 1), ("shoe", 1)], "s3": [("hat", -2)]},
]

Told = dict[str, list[tuple[str, int]]]


def told(batch: Batch) -> Told:
    assert len({row["store"] for row in batch}) == len(batch)
    return {row["store"]: list(row["stock"].items()) for row in batch}


def found(spark: SparkSession, app: App) -> list[Told]:
    """What is told of FIRST and, after a restart, of SECOND."""
    batches = []
    with AppTest(spark, app) as test:
        for events in (FIRST, SECOND):
            test.restart()
            for store, sku, quantity in events:
                test.send("events", {"sku": sku, "quantity": quantity}, key=store)
            batches.append(told(test.run()))
    return batches


def test_golden(spark: SparkSession) -> None:
    assert found(spark, store_inventory) == EXPECTED


BAD: list[tuple[Any, Any, str]] = [
    ("s1", "not json", "the value is not JSON: Expecting value at character 0"),
    ("s1", {"sku": "hat"}, "field quantity is missing"),
    ("s1", {"quantity": 1}, "field sku is missing"),
    ("s1", {"sku": "hat", "quantity": "many"}, "field quantity is not int"),
    ("s1", {"sku": "hat", "quantity": 2**31}, "field quantity is not int"),
    (None, {"sku": "hat", "quantity": 1}, "the key is null"),
    ("s1", None, "the value is null"),
    ("s1", b"\xff" * 2_000_000, "the value is not UTF-8"),
]


def test_a_bad_event_is_a_dead_letter_and_an_odd_time_counts(spark: SparkSession) -> None:
    with AppTest(spark, store_inventory) as test:
        for key, value, _ in BAD:
            test.send("events", value, key=key)
        # no sum is too large
        for time in ("2099-01-01T00:00:00Z", "1996-01-01T00:00:00Z", 0):
            test.send("events", {"sku": "hat", "quantity": 2**31 - 1}, key="s1", time=time)
        test.send("events", {"sku": "hat", "quantity": 1, "note": "x" * 2_000_000}, key="s2")
        batch = test.run()
        assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
        assert told(batch) == {"s1": [("hat", 3 * (2**31 - 1))], "s2": [("hat", 1)]}
        assert batch.late == 0 and batch.watermark is None


def test_a_stock_that_is_too_large_is_a_dead_letter_and_the_others_go_on(spark: SparkSession) -> None:
    with AppTest(spark, store_inventory) as test:
        for sku in ("a", "b"):
            test.send("events", {"sku": sku * 600_000, "quantity": 1}, key="s1")
        test.send("events", {"sku": "hat", "quantity": 1}, key="s2")
        batch = test.run()
        assert told(batch) == {"s2": [("hat", 1)]}
        [letter] = batch.dead_letters
        assert (letter.key, letter.value) == (b'{"store":"s1"}', None) and "too large" in letter.reason
        assert int(letter.headers["value-bytes"]) > 1_200_000
        # the other stores go on
        test.send("events", {"sku": "hat", "quantity": 1}, key="s2")
        assert told(test.run()) == {"s2": [("hat", 2)]}


def test_definition() -> None:
    assert store_inventory.name == "store-inventory"
    assert store_inventory.results[""].key == ("store",)
    assert store_inventory.output_mode == "update"


def stocks(app: App) -> list[Told]:
    """What the app's own processor tells of FIRST and of SECOND, in this process."""
    memory = Memory(lambda: app.function.__globals__["Stock"](), "store")
    batches = [
        [dict(zip(("store", "sku", "quantity"), event, strict=True)) for event in each] for each in (FIRST, SECOND)
    ]
    return [{row["store"]: list(row["stock"].items()) for row in memory.run(each)} for each in batches]


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("stock.get(sku, 0) + change", "change"),
        ("stock.get(sku, 0) + change", "stock.get(sku, 0) + abs(change)"),
        ("stock.get(sku, 0) + change", "max(stock.get(sku, 0) + change, 0)"),
        ("dict(sorted(stock.items()))", "stock"),
        ("dict(sorted(stock.items()))", "{sku: count for sku, count in sorted(stock.items()) if count}"),
        ("self._stock.update((stock,))", "pass"),
    ],
)
def test_a_fault_in_any_clause_is_seen(there: str, instead: str) -> None:
    assert stocks(store_inventory) == EXPECTED
    assert stocks(mutant(store_inventory, there, instead)) != EXPECTED


@pytest.mark.long
def test_a_stock_of_all_stores_is_seen(spark: SparkSession) -> None:
    changed = mutant(store_inventory, 'events.select("store", ', """events.selectExpr("'s1' AS store", """)
    assert found(spark, changed) != EXPECTED
