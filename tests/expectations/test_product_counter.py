"""The suite of product-counter passes a good result, and one planted defect turns one check red."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

DDL = "product string, at string, views bigint"


def told(second: int, **views: int) -> list[Row]:
    return [(product, f"2013-03-01T14:30:{second:02}Z", count) for product, count in views.items()]


GOOD = [*told(1, a=1, b=3), *told(2, a=3, b=3), *told(5, a=3, b=3, c=1), *told(10, a=3, b=3, c=2)]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "product_counter", GOOD, DDL, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


def test_settings_are_heeded(spark: SparkSession, tmp_path: Path) -> None:
    # each product has a store of its own
    rows = [*told(5, a=1, b=3), *told(10, a=3), *told(20, c=1)]
    settings = {"every_s": 5, "stores": 100_000}
    assert red(check(spark, tmp_path, "product_counter", rows, DDL, app_settings=settings)) == set()
    settings["every_s"] = 10
    assert red(check(spark, tmp_path, "product_counter", rows, DDL, app_settings=settings)) == {"times aligned"}


@pytest.mark.parametrize(
    ("expected", "rows"),
    [
        ("not empty", []),
        ("product not null", [*GOOD, (None, GOOD[-1][1], 1)]),
        ("at not null", [*GOOD, ("a", None, 1)]),
        ("views not null", [*GOOD[:-1], ("c", GOOD[-1][1], None), *told(10, d=2)]),
        ("each counter once at a time", [*GOOD, GOOD[-1]]),
        ("at readable", [*GOOD, *[(product, "2013-03-01T14:30:11.000Z", 9) for product in "abc"]]),
        ("views in range", [*GOOD, *told(10, d=0)]),
        ("counters never fall", [*GOOD, *told(11, a=2, b=3, c=9)]),
        ("every counter told", [*GOOD, *told(11, a=9, b=3)]),
        ("each time has a new view", [*GOOD, *told(11, a=3, b=3, c=2)]),
    ],
)
def test_a_defect_is_found(spark: SparkSession, tmp_path: Path, expected: str, rows: list[Row]) -> None:
    assert red(check(spark, tmp_path, "product_counter", rows, DDL)) == {expected}


def test_another_schema_is_found(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "product_counter", GOOD, DDL.replace("bigint", "int"))) == {"schema"}


def test_another_volume_than_that_of_the_live_release_is_found(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "product_counter", GOOD, DDL, live_rows=100)) == {"volume against live"}
