"""The suite of close-notifications passes a good result, and one planted defect turns one check red."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

NAMES = ("user", "message", "topic", "partition", "offset")
DDL = "user string, message string, topic string, partition int, offset bigint"


def told(number: int, **changes: Any) -> Row:
    values = ("ada", "You are not currently viewing Facebook.", "open", 0, number)
    return tuple({**dict(zip(NAMES, values, strict=True)), **changes}.values())


GOOD: list[Row] = [told(1), told(2), told(1, partition=1)]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "close_notifications", GOOD, DDL, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


@pytest.mark.parametrize(
    ("expected", "row"),
    [
        ("each event once", told(1)),
        ("message as agreed", told(9, message="You are viewing Facebook.")),
    ],
)
def test_a_defect_is_found(spark: SparkSession, tmp_path: Path, expected: str, row: Row) -> None:
    assert red(check(spark, tmp_path, "close_notifications", [*GOOD, row], DDL)) == {expected}


def test_a_field_that_is_not_there_is_found(spark: SparkSession, tmp_path: Path) -> None:
    rows = [*GOOD, *[told(10 + number, **{name: None}) for number, name in enumerate(NAMES)]]
    verdict = check(spark, tmp_path, "close_notifications", rows, DDL)
    assert red(verdict) == {f"{name} not null" for name in NAMES}
    assert {result.unexpected for result in verdict.results if result.outcome == "failed"} == {1}


def test_it_may_be_empty(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "close_notifications", [], DDL, live_rows=0)) == set()


def test_another_schema_and_another_volume_are_found(spark: SparkSession, tmp_path: Path) -> None:
    other = DDL.replace("partition int", "partition bigint")
    assert red(check(spark, tmp_path, "close_notifications", GOOD, other)) == {"schema"}
    assert red(check(spark, tmp_path, "close_notifications", GOOD, DDL, live_rows=100)) == {"volume against live"}
