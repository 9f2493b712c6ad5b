"""The suite of beaconing passes a good result, and one planted defect turns one check red."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

DDL = (
    "host string, destination string, window_start string, contacts int, interval_s decimal(12,3), "
    "deviation decimal(9,4), bytes decimal(29,0)"
)


def alert(minute: int, **changes: Any) -> Row:
    row = {
        "host": "host-03",
        "destination": "update.example.net",
        "window_start": f"2013-03-01T14:{minute:02}:00Z",
        "contacts": 10,
        "interval_s": Decimal("60.000"),
        "deviation": Decimal("0.0000"),
        "bytes": Decimal(1280),
        **changes,
    }
    return tuple(row.values())


GOOD = [
    alert(30),
    alert(32),
    alert(32, host="host-07"),
    alert(32, destination="203.0.113.9", contacts=8, interval_s=Decimal("85.571"), deviation=Decimal("0.1000")),
    alert(34, contacts=30, interval_s=Decimal("20.655")),
]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "beaconing", GOOD, DDL, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


def test_a_network_without_beacons_passes(spark: SparkSession, tmp_path: Path) -> None:
    assert check(spark, tmp_path, "beaconing", [], DDL).ok
    # a limit between two ten-thousandths, and a deviation of just as much, as it is rounded
    rows = [alert(30, deviation=Decimal("0.0329"))]
    assert check(spark, tmp_path, "beaconing", rows, DDL, app_settings={"jitter": 0.03285}).ok


def test_settings_are_heeded(spark: SparkSession, tmp_path: Path) -> None:
    rows = [alert(31, contacts=3, interval_s=Decimal("29.000"), deviation=Decimal("0.3000"))]
    settings = {"window_s": 60, "advance_s": 60, "threshold": 3, "rarely": 5, "jitter": 0.3}
    assert red(check(spark, tmp_path, "beaconing", rows, DDL, app_settings=settings)) == set()
    assert red(check(spark, tmp_path, "beaconing", rows, DDL)) == {
        "windows aligned", "contacts in range", "deviation in range",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("expected", "rows"),
    [
        ("one alert per window", [*GOOD, alert(30, bytes=Decimal(7))]),
        ("window_start readable", [*GOOD, alert(36, window_start="2013-03-01 14:36:00")]),
        ("windows aligned", [*GOOD, alert(31)]),
        ("contacts in range", [*GOOD, alert(36, contacts=7)]),
        ("contacts in range", [*GOOD, alert(36, contacts=31, interval_s=Decimal("19.000"))]),
        ("deviation in range", [*GOOD, alert(36, deviation=Decimal("0.1001"))]),
        ("deviation in range", [*GOOD, alert(36, deviation=Decimal("-0.0001"))]),
        ("contacts fit into the window", [*GOOD, alert(36, interval_s=Decimal("66.668"))]),
        ("contacts fit into the window", [*GOOD, alert(36, interval_s=Decimal("0.999"))]),
    ],
)
def test_a_defect_is_found(spark: SparkSession, tmp_path: Path, expected: str, rows: list[Row]) -> None:
    assert red(check(spark, tmp_path, "beaconing", rows, DDL)) == {expected}


def test_a_field_that_is_not_there_is_found(spark: SparkSession, tmp_path: Path) -> None:
    names = ("host", "destination", "window_start", "contacts", "interval_s", "deviation", "bytes")
    rows = [*GOOD, *[alert(36, **{"host": name, name: None}) for name in names]]
    assert red(check(spark, tmp_path, "beaconing", rows, DDL)) == {f"{name} not null" for name in names}


def test_another_schema_is_found(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "beaconing", GOOD, DDL.replace("contacts int", "contacts bigint"))) == {"schema"}


def test_another_volume_than_that_of_the_live_release_is_found(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "beaconing", GOOD, DDL, live_rows=100)) == {"volume against live"}
