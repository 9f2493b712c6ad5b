"""The suites of page-stats pass good results, and planted defects turn their checks red."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = [pytest.mark.spark, pytest.mark.parametrize(("suite", "name"), [("pages", "page"), ("zips", "zip")])]

MINUTE = "2013-03-01T14:30:00Z"
GOOD: list[Row] = [("a", MINUTE, 3), ("b", MINUTE, 1)]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path, suite: str, name: str) -> None:
    ddl = f"{name} string, minute string, views bigint"
    verdict = check(spark, tmp_path, f"page_stats_{suite}", GOOD, ddl, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


def test_each_defect_is_found_once(spark: SparkSession, tmp_path: Path, suite: str, name: str) -> None:
    rows = [
        *GOOD,
        GOOD[0],
        ("c", "2013-03-01T14:30:01Z", 1),
        ("d", MINUTE, 0),
        (None, MINUTE, 1),
        ("e", None, 1),
        ("f", MINUTE, None),
    ]
    verdict = check(
        spark, tmp_path, f"page_stats_{suite}", rows, f"{name} string, minute string, views bigint", live_rows=100
    )
    defects = {"key unique", "minute form", "views in range", f"{name} not null", "minute not null", "views not null"}
    assert red(verdict) == {*defects, "volume against live"}
    assert {result.unexpected for result in verdict.results if result.name in defects} == {1}
