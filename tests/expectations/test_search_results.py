"""The suite of search-results passes a good result, and planted defects turn its checks red."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

DDL = "query string, result string, clicks bigint, rank int"
GOOD: list[Row] = [
    ("spark", "p1", 7, 1),
    ("spark", "p2", 3, 2),
    ("spark", "p3", 3, 2),
    ("spark", "p4", 1, 4),
    ("kafka", "p2", 1, 1),
]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "search_results", GOOD, DDL, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


def test_each_defect_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        *GOOD,
        ("kafka", "p2", 1, 1),  # twice
        ("flink", "p1", 0, 1),
        ("beam", "p1", 2, 1),
        ("beam", "p2", 2, 2),  # as many clicks, but another rank
        (None, "p1", 1, 1),
        ("q1", None, 1, 1),
        ("q2", "p1", None, 1),
        ("q3", "p1", 1, None),
    ]
    verdict = check(spark, tmp_path, "search_results", rows, DDL, live_rows=100)
    defects = {
        "key unique", "clicks in range", "ranks follow clicks", "query not null", "result not null",
        "clicks not null", "rank not null",
    }  # fmt: skip
    assert red(verdict) == {*defects, "volume against live"}
    assert {result.unexpected for result in verdict.results if result.name in defects} == {1}


def test_each_stale_rank_is_found(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        *[("q1", "p1", 9, 1), ("q1", "p2", 8, 1)],  # a rank that another result has
        *[("q2", "p1", 9, 1), ("q2", "p2", 8, 3)],  # one that is left out
        *[("q3", "p1", 9, 2), ("q3", "p2", 8, 1)],  # two in the wrong order
    ]
    verdict = check(spark, tmp_path, "search_results", rows, DDL)
    assert [(r.name, r.unexpected) for r in verdict.results if r.outcome == "failed"] == [("ranks follow clicks", 4)]


def test_it_may_be_empty_but_not_of_another_schema(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "search_results", [], DDL, live_rows=0)) == set()
    assert red(check(spark, tmp_path, "search_results", [], DDL.replace("bigint", "int"))) == {"schema"}
