"""The suites of maintenance pass good results, and planted defects turn their checks red."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

LIMITS = "expected decimal(18,3), lower decimal(18,3), upper decimal(18,3)"
DDL = (
    f"device string, at string, pattern string, signals bigint, {LIMITS}, restarts bigint, dropped_packets bigint, "
    "forces bigint"
)


def device(
    name: str | None, pattern: str, signals: int, limits: Any = ("4.5", "2.379", "6.621"), **changes: Any
) -> Row:
    row = {"device": name, "at": "2013-03-01T14:30:00Z", "pattern": pattern, "signals": signals}
    row |= dict(zip(("expected", "lower", "upper"), (limit and Decimal(limit) for limit in limits), strict=True))
    return tuple({**row, "restarts": signals, "dropped_packets": 0, "forces": 0, **changes}.values())


NONE = (None, None, None)
OUT: list[Row] = [
    device("d1", "above", 7, restarts=1, dropped_packets=2, forces=4),
    device("d2", "below", 2),
    device("d2", "below", 2, at="2013-03-01T14:40:00Z"),
]
DEVICES: list[Row] = [
    *OUT[:2],
    device("d3", "within", 6, ("4", "2", "6")),
    device("d4", "within", 3),
    device("d5", "learning", 9, NONE),
]
DEFECTS: list[Row] = [
    device("e1", "above", 6),
    device("e2", "above", 7, forces=1),
    device("e3", "above", 7, at="2013-03-01 14:30"),
]


def test_good_results_pass(spark: SparkSession, tmp_path: Path) -> None:
    for suite, rows in (("devices", DEVICES), ("alerts", OUT)):
        verdict = check(spark, tmp_path, f"maintenance_{suite}", rows, DDL, live_rows=len(rows))
        assert red(verdict) == set() and verdict.skipped == 0


def test_each_defect_of_a_device_is_found(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        *DEVICES,
        *DEFECTS,
        DEVICES[0],
        device(None, "above", 7),
        device("e4", "learning", 9),
        device("e5", "within", 2),
        device("e6", "odd", 5),
    ]
    verdict = check(spark, tmp_path, "maintenance_devices", rows, DDL, live_rows=100)
    found = {result.name: result.unexpected for result in verdict.results if result.name in red(verdict)}
    found.pop("volume against live")
    assert found == {
        "key unique": 1, "device not null": 1, "time form": 1, "signals add up": 1, "learning without limits": 1,
        "pattern follows limits": 3,
    }  # fmt: skip


def test_each_defect_of_an_alert_is_found(spark: SparkSession, tmp_path: Path) -> None:
    rows = [*OUT, *DEFECTS, OUT[0], device("e4", "within", 4), device("e5", "below", 3)]
    verdict = check(spark, tmp_path, "maintenance_alerts", rows, DDL)
    found = {result.name: result.unexpected for result in verdict.results if result.name in red(verdict)}
    assert found == {"one alert at a time": 1, "time form": 1, "signals add up": 1, "outside the limits": 3}
