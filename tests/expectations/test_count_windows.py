"""The suite of count-windows passes a good result, and one planted defect turns one check red."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.expectations.tables import Row, check, red

pytestmark = pytest.mark.spark

NAMES = ("key", "kind", "numbers", "topic", "partition", "offset")
DDL = "key string, kind string, numbers array<bigint>, topic string, partition int, offset bigint"


def window(kind: str, numbers: list[Any], offset: int, key: str = "a", partition: int = 0) -> Row:
    return (key, kind, numbers, "numbers", partition, offset)


def of_b(numbers: list[Any]) -> list[Row]:
    return [window(kind, numbers, 12, "b", 1) for kind in ("sliding", "tumbling", "hopping")]


# of a: 1 3 7 5 11 12 15 from offset 10; of b: 8 8 8, in another partition
GOOD: list[Row] = [
    window("sliding", [1, 3, 7], 12),
    window("tumbling", [1, 3, 7], 12),
    window("hopping", [1, 3, 7], 12),
    window("sliding", [3, 7, 5], 13),
    window("sliding", [7, 5, 11], 14),
    window("hopping", [7, 5, 11], 14),
    window("sliding", [5, 11, 12], 15),
    window("tumbling", [5, 11, 12], 15),
    window("sliding", [11, 12, 15], 16),
    window("hopping", [11, 12, 15], 16),
    *of_b([8, 8, 8]),
]


def changed(index: int, **columns: Any) -> list[Row]:
    """The good result with other values in one row."""
    row = {**dict(zip(NAMES, GOOD[index], strict=True)), **columns}
    return [*GOOD[:index], tuple(row.values()), *GOOD[index + 1 :]]


def test_a_good_result_passes(spark: SparkSession, tmp_path: Path) -> None:
    verdict = check(spark, tmp_path, "count_windows", GOOD, DDL, live_rows=len(GOOD))
    assert red(verdict) == set() and verdict.skipped == 0


def test_settings_are_heeded(spark: SparkSession, tmp_path: Path) -> None:
    rows = [window(kind, [1, 2], 1) for kind in ("sliding", "tumbling", "hopping")]
    rows += [window("sliding", [2, 3], 2), window("sliding", [3, 4], 3), window("tumbling", [3, 4], 3)]
    settings = {"size": 2, "advance": 3}
    assert red(check(spark, tmp_path, "count_windows", rows, DDL, app_settings=settings)) == set()


@pytest.mark.parametrize(
    ("expected", "rows"),
    [
        ("not empty", []),
        ("kind known", [*GOOD, window("session", [1, 3, 7], 12)]),
        ("windows full", [*GOOD[:10], *of_b([8, 8, None])]),
        ("windows full", [*GOOD[:10], *of_b([8, 8])]),
        ("one window of a kind per record", [*GOOD, GOOD[5]]),
        ("sliding windows follow on", changed(3, numbers=[3, 7, 6])),
        # a window is missing
        ("kinds agree", GOOD[:7] + GOOD[8:]),
        ("kinds agree", GOOD[:5] + GOOD[6:]),
        # one too many
        ("kinds agree", [*GOOD, window("tumbling", [3, 7, 5], 13)]),
        # of other numbers
        ("kinds agree", changed(5, numbers=[7, 5, 12])),
    ],
)
def test_a_defect_is_found(spark: SparkSession, tmp_path: Path, expected: str, rows: list[Row]) -> None:
    assert red(check(spark, tmp_path, "count_windows", rows, DDL)) == {expected}


def test_another_schema_is_found(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "count_windows", GOOD, DDL.replace("array<bigint>", "array<int>"))) == {"schema"}


def test_another_volume_than_that_of_the_live_release_is_found(spark: SparkSession, tmp_path: Path) -> None:
    assert red(check(spark, tmp_path, "count_windows", GOOD, DDL, live_rows=100)) == {"volume against live"}


def test_a_field_that_is_not_there_is_found(spark: SparkSession, tmp_path: Path) -> None:
    lone = [window("sliding", [1, 3, 7], 20, key=name) for name in NAMES]
    rows = [
        *GOOD,
        *[tuple(None if at == n else v for n, v in enumerate(row)) for at, row in enumerate(lone)],
    ]
    verdict = check(spark, tmp_path, "count_windows", rows, DDL)
    found = {result.name: result.unexpected for result in verdict.results}
    assert {f"{name} not null" for name in NAMES} <= red(verdict)
    assert {found[f"{name} not null"] for name in NAMES} == {1}
