"""The suite of clickstream passes a good result, and planted defects turn its checks red."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

DDL = "user string, page string, at string, terms string, age int, gender string, interests array<string>, zip string"
AT, LATER = "2013-03-01T14:30:00.125Z", "2013-03-01T14:30:01.125Z"
ADA = (36, "female", ["chess"], "10115")
NOTHING = (None, None, None, None)
GOOD: list[Row] = [
    ("ada", "/a", AT, "spark", *ADA),
    ("ada", "/a", AT, "kafka", *ADA),
    ("ada", "/a", LATER, None, *NOTHING),
    ("ben", "/a", AT, None, *NOTHING),
]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "clickstream", GOOD, DDL, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


def test_each_defect_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        *GOOD,
        ("ada", "/b", AT, "spark", *NOTHING),
        ("cleo", "/a", "2013-03-01T14:30:00Z", None, *NOTHING),
        (None, "/a", AT, None, *NOTHING),
        ("dora", None, AT, None, *NOTHING),
        ("dora", "/a", None, None, *NOTHING),
    ]
    verdict = check(spark, tmp_path, "clickstream", rows, DDL, live_rows=100)
    defects = {"one profile at a time", "time form", "user not null", "page not null", "at not null"}
    assert red(verdict) == {*defects, "volume against live"}
    assert {result.unexpected for result in verdict.results if result.name in defects} == {1}
