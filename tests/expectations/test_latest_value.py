"""The suite of latest-value passes a good result, and planted defects turn its checks red."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

DDL = "key string, value bigint"
GOOD: list[Row] = [("k1", 7), ("k2", -4), ("k3", 0)]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "latest_value", GOOD, DDL, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


def test_each_defect_is_found(spark: SparkSession, tmp_path: Path) -> None:
    rows = [*GOOD, ("k1", 8), (None, 1), ("k4", None)]
    verdict = check(spark, tmp_path, "latest_value", rows, DDL, live_rows=100)
    assert red(verdict) == {"key unique", "key not null", "value not null", "volume against live"}
    assert {result.unexpected for result in verdict.results if result.unexpected} == {1}


def test_nothing_of_another_schema_is_found(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "latest_value", [], DDL.replace("bigint", "int"))) == {"not empty", "schema"}
