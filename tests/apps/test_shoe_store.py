"""Golden test of shoe-store: events in, the inventory and the totals out, all written by hand."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.shoe_store import shoe_store
from pipelines.model import App
from pipelines.testing import AppTest
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=4_000, per_second=50, at_least=9)

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


GOOD: dict[str, Any] = {"kind": "sale", "color": "red", "count": 1, "price": 10.0}
BAD: list[tuple[Any, str]] = [
    (b"{", "the value is not JSON: Expecting property name enclosed in double quotes at character 1"),
    ({**GOOD, "price": None}, "field price is missing"),
    ({**GOOD, "count": "one"}, "field count is not int"),
    ({"kind": "sale"}, "field color is missing"),
    (None, "the value is null"),
    (b"\xff" * 2_000_000, "the value is not UTF-8"),
    # two colors, neither of which is "?"
    ({**GOOD, "color": "\ud800"}, "field color has half of a surrogate pair"),
    ({**GOOD, "color": "\udfff"}, "field color has half of a surrogate pair"),
]


def test_a_batch_tells_only_what_changed_and_what_is_bad_is_a_dead_letter(spark: SparkSession) -> None:
    good = GOOD
    with AppTest(spark, shoe_store) as test:
        send(test, FIRST)
        test.run()
        test.restart()
        for value, _ in BAD:
            test.send("events", value)
        for time in ("2099-01-01T00:00:00Z", "1996-01-01T00:00:00Z"):
            test.send("events", good, time=time)
        batch = test.run()
        assert [row["color"] for row in batch["inventory"]] == ["red"]
        assert (batch["inventory"][0]["in_stock"], batch["totals"][0]["transactions"]) == (6, 5)
        assert [letter.reason for letter in batch.dead_letters] == [reason for _, reason in BAD] and batch.late == 0
        test.send("events", {**good, "color": "x" * 2_000_000})
        batch = test.run()
        # the row of a color that is too long is a dead letter, and its sale is in the totals
        assert (len(batch["inventory"]), batch["totals"][0]["transactions"]) == (0, 6)
        [letter] = batch.dead_letters
        assert (letter.topic, letter.key) == ("shoe-store.v1.g1.inventory", None) and "too large" in letter.reason
        assert letter.headers["key-start"].startswith(b'{"color":"xxx')
        send(test, FIRST[:1])
        assert [row["color"] for row in test.run()["inventory"]] == ["red"]


def test_an_event_that_comes_twice_counts_twice(spark: SparkSession) -> None:
    with AppTest(spark, shoe_store) as test:
        send(test, [*FIRST, FIRST[1]])
        test.run()
        send(test, [FIRST[1]])
        test.run()
        # two more sales of three pairs
        assert tables(test) == (
            {
                "red": {"in_stock": 2, "sold": 8, "taken": Decimal("799.20"), "oversold": False},
                "blue": AFTER_FIRST[0]["blue"],
            },
            {"in_stock": 0, "taken": Decimal("959.20"), "transactions": 5},
        )


LEAST, MOST = -(2**31), 2**31 - 1


def test_the_largest_counts_and_prices_fit_into_every_sum(spark: SparkSession) -> None:
    with AppTest(spark, shoe_store) as test:
        # a sign makes the least count larger than an int
        send(test, [("sale", "red", LEAST, 1.0), ("return", "white", LEAST, 1.0)])
        test.run()
        send(test, 5 * [("sale", "blue", MOST, 999_999.99)])
        test.run()
        # and the sum is still added to
        send(test, [("sale", "blue", 1, 0.01)])
        test.run()
        assert tables(test) == (
            {
                "red": {"in_stock": 2**31, "sold": LEAST, "taken": -2147483648.00, "oversold": False},
                "white": {"in_stock": LEAST, "sold": 2**31, "taken": 2147483648.00, "oversold": True},
                # 5 * 2147483647 * 999999.99 + 0.01
                "blue": {
                    "in_stock": -10737418236,
                    "sold": 10737418236,
                    "taken": Decimal("10737418127625817.66"),
                    "oversold": True,
                },
            },
            {"in_stock": -10737418236, "taken": Decimal("10737418127625817.66"), "transactions": 8},
        )


def test_no_sum_of_as_many_events_as_there_are_offsets_is_too_large(spark: SparkSession) -> None:
    with AppTest(spark, shoe_store) as test:
        inventory, totals = (dict(field.split(":", 1) for field in _fields(test.schema[name])) for name in test.schema)
    assert inventory["in_stock"] == inventory["sold"] == totals["in_stock"] == "decimal(29,0)"
    assert 2**63 * 2**31 < 10**29
    assert inventory["taken"] == totals["taken"] == "decimal(38,2)"
    assert 2**63 * 2**31 * 10**6 < 10**36


def _fields(struct: str) -> list[str]:
    """`name:type` of each field of a struct's type."""
    return re.split(r",(?![^(]*\))", struct.removeprefix("struct<").removesuffix(">"))


# blue is sold before its pairs come in, but they do; more of red is sold than ever came in
OVERSOLD = [
    ("sale", "blue", 2, 80.0),
    ("shipment", "blue", 5, 50.0),
    ("shipment", "red", 5, 50.0),
    ("sale", "red", 6, 80.0),
]


@pytest.mark.parametrize("size", [1, 3, len(OVERSOLD)])
def test_the_flag_is_that_of_the_last_event_in_whatever_batches_they_come(spark: SparkSession, size: int) -> None:
    with AppTest(spark, shoe_store) as test:
        flags = []
        for start in range(0, len(OVERSOLD), size):
            send(test, OVERSOLD[start : start + size])
            flags += [row["oversold"] for row in test.run()["inventory"] if row["color"] == "blue"]
        assert {color: row["oversold"] for color, row in tables(test)[0].items()} == {"blue": False, "red": True}
        # a batch that ends with the sale tells it
        assert flags == ([True, False] if size == 1 else [False])


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('.isin("shipment", "sale", "return")', ".isNotNull()"),
        (".when(is_return, -pairs)", ".when(is_return, pairs)"),
        ("F.when(is_sale, -pairs)", "F.when(is_sale, pairs)"),
        (' * F.col("price")', ""),
        ("(is_sale | is_return)", "F.lit(True)"),
        ('F.col("in_stock") < 0', 'F.col("in_stock") < -1'),
        ('F.array("color", F.lit(None))', 'F.array("color", "color")'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    faulty = mutant(shoe_store, there, instead)
    try:
        seen = run(spark, faulty)
    except (AssertionError, KeyError):
        return
    assert seen != [AFTER_FIRST, AFTER_SECOND]
