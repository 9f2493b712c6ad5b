"""The suite of store-inventory passes a good result, and planted defects turn its checks red."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

DDL = "store string, stock map<string,bigint>"
# maps as lists of pairs, as Arrow takes them
GOOD: list[Row] = [("s1", [("hat", 3), ("shirt", 0)]), ("s2", [("hat", -1)])]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "store_inventory", GOOD, DDL, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


def test_each_defect_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        *GOOD,
        ("s1", [("hat", 3)]),
        ("s3", []),
        ("s4", [("hat", None)]),
        ("s5", [("shirt", 1), ("hat", 1)]),
        (None, [("hat", 1)]),
        ("s6", None),
    ]
    verdict = check(spark, tmp_path, "store_inventory", rows, DDL, live_rows=100)
    defects = {
        "key unique",
        "a SKU at least",
        "quantities not null",
        "SKUs in order",
        "store not null",
        "stock not null",
    }
    assert red(verdict) == {*defects, "volume against live"}
    assert {result.unexpected for result in verdict.results if result.name in defects} == {1}


def test_nothing_of_another_schema_is_found(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "store_inventory", [], DDL.replace("bigint", "int"))) == {"not empty", "schema"}
