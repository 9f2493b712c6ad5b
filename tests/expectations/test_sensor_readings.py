"""The suites of sensor-readings pass good results, and planted defects turn their checks red."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

HOURS_DDL = "device string, hour string, lowest double, highest double, average double, readings bigint"
LATE_DDL = "device string, at string, value double, late_ms bigint, topic string, partition int, offset bigint"
HOUR = "2013-03-01T14:00:00Z"
# the average of three times 0.1 is not exactly 0.1
HOURS: list[Row] = [("d1", HOUR, -2.0, 3.0, 0.5, 2), ("d2", HOUR, 0.1, 0.1, 0.10000000000000002, 3)]
AT = "2013-03-01T14:30:00.125Z"
LATE: list[Row] = [("d1", AT, 1.5, 10_800_001, "readings", 0, 7), ("d1", AT, 1.5, 10_800_001, "readings", 1, 7)]


def test_good_results_pass(spark: SparkSession, tmp_path: Path) -> None:
    for suite, rows, ddl in (("hours", HOURS, HOURS_DDL), ("late", LATE, LATE_DDL)):
        verdict = check(spark, tmp_path, f"sensor_readings_{suite}", rows, ddl, live_rows=len(rows))
        assert red(verdict) == set() and verdict.skipped == 0


def test_each_defect_of_an_hour_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        *HOURS,
        HOURS[0],
        ("d3", "2013-03-01T14:30:00Z", 1.0, 1.0, 1.0, 1),
        ("d4", HOUR, 1.0, 1.0, 1.0, 0),
        ("d5", HOUR, 1.0, 2.0, 2.1, 2),
        ("d6", HOUR, 1.0, 2.0, 1.5, 1),
        (None, HOUR, 1.0, 1.0, 1.0, 1),
        ("d7", None, 1.0, 1.0, 1.0, 1),
        ("d8", HOUR, None, 1.0, 1.0, 1),
        ("d8", HOUR.replace("14", "15"), 1.0, None, 1.0, 1),
        ("d8", HOUR.replace("14", "16"), 1.0, 1.0, None, 1),
        ("d8", HOUR.replace("14", "17"), 1.0, 1.0, 1.0, None),
    ]
    verdict = check(spark, tmp_path, "sensor_readings_hours", rows, HOURS_DDL, live_rows=100)
    null = {f"{name} not null" for name in ("device", "hour", "lowest", "highest", "average", "readings")}
    defects = {*null, "key unique", "hour form", "readings in range", "average in range", "one reading is all three"}
    assert red(verdict) == {*defects, "volume against live"}
    assert {result.unexpected for result in verdict.results if result.name in defects} == {1}


def test_each_defect_of_a_late_reading_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        *LATE,
        LATE[0],
        ("d2", "2013-03-01T14:30:00Z", 1.0, 20_000_000, "readings", 0, 8),
        ("d2", AT, 1.0, 10_800_000, "readings", 0, 9),
    ]
    verdict = check(spark, tmp_path, "sensor_readings_late", rows, LATE_DDL)
    assert red(verdict) == {"each reading once", "time form", "too late"}
    assert red(
        check(spark, tmp_path, "sensor_readings_late", rows[:2], LATE_DDL, app_settings={"grace_s": 20_000})
    ) == {"too late"}
