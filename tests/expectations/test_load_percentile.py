"""The suite of load-percentile passes a good result, and planted defects turn its checks red."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

DDL = "host string, minute string, requests bigint, p99_ms int, average_ms decimal(14,4)"


def load(
    minute: int,
    requests: int | None = 0,
    p99: int | None = None,
    average: str | None = "12.5000",
    host: str | None = "h1",
) -> Row:
    return (host, f"2013-03-01T14:{minute:02}:00Z", requests, p99, average and Decimal(average))


GOOD: list[Row] = [
    *[load(minute) for minute in range(31, 35)],
    load(30, 4, 20),
    # silent for long in between, and the next minute is not over yet
    load(50, 1, 0, "0.0000"),
    load(30, 1, 7, "7.0000", host="h2"),
]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "load_percentile", GOOD, DDL, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


def test_each_defect_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        *GOOD,
        load(31),  # twice
        load(40, 1, None, host="h3"),
        load(41, -1, 5, host="h3"),
        load(42, 1, -1, host="h3"),
        load(43, average="-0.1", host="h3"),
        load(40, 1, 5, host="h4"),
        load(42, host="h4"),  # 41 is missing
        ("h5", "2013-03-01T14:30:30Z", 0, None, Decimal(1)),
        load(30, host=None),
        ("h6", None, 0, None, Decimal(1)),
        load(31, None, host="h7"),
        load(30, average=None, host="h8"),
    ]
    verdict = check(spark, tmp_path, "load_percentile", rows, DDL, live_rows=100)
    defects = {
        "key unique", "p99_ms null only without requests", "requests in range", "p99_ms in range",
        "average_ms in range", "minutes follow on", "minute readable", "host not null",
        "minute not null", "requests not null", "average_ms not null",
    }  # fmt: skip
    assert red(verdict) == {*defects, "volume against live"}
    assert {result.unexpected for result in verdict.results if result.name in defects} == {1}


def test_nothing_of_another_schema_is_found(spark: SparkSession, tmp_path: Path) -> None:
    other = DDL.replace("decimal(14,4)", "double")
    assert red(check(spark, tmp_path, "load_percentile", [], other)) == {"not empty", "schema"}
