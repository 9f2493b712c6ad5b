"""Golden test of large-orders: orders in, large ones out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.large_orders import large_orders
from pipelines.model import App
from pipelines.testing import AppTest
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

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
