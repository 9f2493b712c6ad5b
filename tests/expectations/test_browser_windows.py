"""The suite of browser-windows passes a good result, and planted defects turn its checks red."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

DDL = "browser_hash string, window_start string, actions bigint"


def window(second: int, browser: str | None = "a1", actions: int | None = 1) -> Row:
    return (browser, f"2013-03-01T14:30:{second:02}Z", actions)


GOOD: list[Row] = [window(0), window(2, actions=7), window(2, "b2"), window(58)]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "browser_windows", GOOD, DDL, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


def test_each_defect_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        *GOOD,
        window(2),  # twice
        window(5),  # starts at no multiple of 2 s
        window(6, actions=0),
        ("c3", "2013-03-01 14:30:08", 1),
        window(10, browser=None),
        window(12, actions=None),
        ("d4", None, 1),
    ]
    verdict = check(spark, tmp_path, "browser_windows", rows, DDL, live_rows=100)
    defects = {
        "key unique", "windows aligned", "actions in range", "window_start readable", "browser_hash not null",
        "actions not null", "window_start not null",
    }  # fmt: skip
    assert red(verdict) == {*defects, "volume against live"}
    assert {result.unexpected for result in verdict.results if result.name in defects} == {1}


def test_nothing_of_another_schema_is_found_and_the_setting_is_heeded(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "browser_windows", [], DDL.replace("bigint", "int"))) == {"not empty", "schema"}
    rows, settings = [window(5)], {"advance_s": 5}
    assert red(check(spark, tmp_path, "browser_windows", rows, DDL, app_settings=settings)) == set()
