"""The suites of captcha pass good results, and planted defects turn their checks red."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

COUNTS_DDL = "browser_hash string, actions bigint"
REQUESTS_DDL = f"{COUNTS_DDL}, topic string, partition int, offset bigint"
COUNTS: list[Row] = [("a", 7), ("b", 0)]
REQUESTS: list[Row] = [("a", 5, "logs", 0, 7), ("a", 6, "logs", 0, 8), ("b", 5, "logs", 1, 7)]


def test_good_results_pass(spark: SparkSession, tmp_path: Path) -> None:
    for suite, rows, ddl in (("counts", COUNTS, COUNTS_DDL), ("requests", REQUESTS, REQUESTS_DDL)):
        verdict = check(spark, tmp_path, f"captcha_{suite}", rows, ddl, live_rows=len(rows))
        assert red(verdict) == set() and verdict.skipped == 0


def test_each_defect_of_a_count_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [*COUNTS, ("a", 8), ("c", -1), (None, 1), ("d", None)]
    verdict = check(spark, tmp_path, "captcha_counts", rows, COUNTS_DDL, live_rows=100)
    defects = {"key unique", "actions in range", "browser_hash not null", "actions not null"}
    assert red(verdict) == {*defects, "volume against live"}
    assert {result.unexpected for result in verdict.results if result.name in defects} == {1}


def test_each_defect_of_a_request_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [*REQUESTS, ("c", 5, "logs", 0, 7), ("b", 5, "logs", 1, 8), ("d", 4, "logs", 1, 9)]
    verdict = check(spark, tmp_path, "captcha_requests", rows, REQUESTS_DDL)
    defects = {"each action once", "each count once", "actions in range"}
    assert red(verdict) == defects
    assert {result.unexpected for result in verdict.results if result.name in defects} == {1}
