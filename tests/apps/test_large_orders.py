"""Golden test of large-orders: orders in, large ones out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.large_orders import large_orders
from pipelines.model import App
from pipelines.testing import AppTest
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=4_000, at_least=80)

ORDERS = [
    # customer, order, sales person, amount, event time in seconds after noon
    ("c1", "o1", "ada", "9999.99", 1.0),
    ("c1", "o2", "ada", "10000.00", 2.0),
    ("c2", "o3", "ben", "10000.01", 3.25),
    ("c1", "o4", "ada", "123456789.10", 4.0),
    ("c1", "o4", "ada", "123456789.10", 4.0),  # twice: told twice, they came in twice
    ("c3", "o5", "cleo", "-20000.00", 5.0),
]

EXPECTED = [
    # customer, order, sales person, amount, time, and the offset of the order
    ("c1", "o4", "ada", 123456789.10, "2026-01-01T12:00:04.000Z", "orders:0:3"),
    ("c1", "o4", "ada", 123456789.10, "2026-01-01T12:00:04.000Z", "orders:0:4"),
    ("c2", "o3", "ben", 10000.01, "2026-01-01T12:00:03.250Z", "orders:0:2"),
]


def found(spark: SparkSession, app: App, **settings: int) -> list[tuple[Any, ...]]:
    with AppTest(spark, app, **settings) as test:
        for customer, order, person, amount, seconds in ORDERS:
            value = {"order_id": order, "sales_person": person, "amount": amount}
            test.send("orders", value, key=customer, time=seconds)
        batch = test.run()
    return sorted((*row.values(), source) for row, source in zip(batch.rows, batch.sources, strict=True))


@pytest.mark.usefixtures("compiled")
def test_golden(spark: SparkSession) -> None:
    assert found(spark, large_orders) == EXPECTED


def test_definition() -> None:
    assert large_orders.name == "large-orders"
    assert large_orders.results[""].key == ("customer",)
    assert large_orders.output_mode == "append"


def test_settings_are_heeded(spark: SparkSession) -> None:
    assert [row[1] for row in found(spark, large_orders, over_dollars=9_999)] == ["o1", "o2", "o4", "o4", "o3"]


LARGE = {"order_id": "o1", "sales_person": "ada", "amount": "20000.00"}
BAD: list[tuple[Any, Any, str]] = [
    ("c1", "not json", "the value is not JSON: Expecting value at character 0"),
    ("c1", {"order_id": "o1", "sales_person": "ada"}, "field amount is missing"),
    ("c1", {**LARGE, "order_id": None}, "field order_id is missing"),
    ("c1", {**LARGE, "amount": "much"}, "field amount is not decimal(14,2)"),
    (None, LARGE, "the key is null"),
    ("c1", None, "the value is null"),
    ("c1", b"\xff" * 2_000_000, "the value is not UTF-8"),
]


def test_a_bad_order_is_a_dead_letter_and_an_odd_time_is_a_time(spark: SparkSession) -> None:
    with AppTest(spark, large_orders) as test:
        for key, value, _ in BAD:
            test.send("orders", value, key=key)
        for time in ("2099-01-01T00:00:00Z", "1996-01-01T00:00:00Z"):
            test.send("orders", LARGE, key="c1", time=time)
        # 2 MB of another field, and of one that would be in the row
        test.send("orders", {**LARGE, "note": "x" * 2_000_000}, key="c1")
        test.send("orders", {**LARGE, "order_id": "x" * 2_000_000}, key="c2")
        batch = test.run()
        assert [(row["order_id"], row["ordered_at"]) for row in batch] == [
            ("o1", "2099-01-01T00:00:00.000Z"),
            ("o1", "1996-01-01T00:00:00.000Z"),
            ("o1", "2026-01-01T12:00:00.000Z"),
        ]
        *malformed, large = batch.dead_letters
        assert [letter.reason for letter in malformed] == [reason for *_, reason in BAD]
        assert (large.key, large.headers["source"]) == (b'{"customer":"c2"}', b"orders:0:10")
        test.send("orders", LARGE, key="c1")
        batch = test.run()
        assert len(batch) == 1 and batch.late == 0 and batch.watermark is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        (" > settings.over_dollars)", " >= settings.over_dollars)"),
        ('F.col("amount") >', 'F.round("amount", 1) >'),
        ('F.col("amount") >', 'F.abs("amount") >'),
        ("orders.where(", 'orders.dropDuplicates(["order_id"]).where('),
        ('.where(F.col("amount") > settings.over_dollars)', ""),
        ("ss.SSS", "ss"),
        ('        "offset",\n', '        F.lit(3).alias("offset"),\n'),
        ('        "sales_person",\n', '        F.col("customer").alias("sales_person"),\n'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert found(spark, mutant(large_orders, there, instead)) != EXPECTED
