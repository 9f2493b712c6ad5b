"""Golden test of latest-value: values in, the table and its updates out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.latest_value import latest_value
from pipelines.model import App
from pipelines.testing import AppTest, Batch
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=4_000, at_least=100)

BATCHES: list[list[tuple[Any, ...]]] = [
    # key, value, event time in seconds after noon, partition if not 0; in the order of their offsets
    [
        ("k1", 7, 0),
        ("k2", 9, 0),
        ("k3", 11, 0),
        ("k2", 4, 0),
        ("k4", 1, 0),
        ("k5", 5, 0),
        ("k5", None, 0),
        ("k6", -3, 9),
    ],
    [
        ("k1", 7, 1),  # the same value again
        ("k6", 8, 2),  # earlier, but newer
        ("k6", 6, 1),
        ("k4", None, 1),
        ("k5", 2, 1),  # there again
        ("k3", 1, "2099-01-01T00:00:00Z"),  # no newer than any other
        ("k3", 2, "1996-01-01T00:00:00Z"),
        ("k3", 3, 2),
        # by a producer that spreads a key: the last partition holds, in whatever order they are read
        ("k7", 1, 0, 1),
        ("k7", 2, 0, 0),
    ],
]
UPDATES = [
    # key -> value of each batch; None deletes
    {"k1": 7, "k2": 4, "k3": 11, "k4": 1, "k5": None, "k6": -3},
    {"k1": 7, "k3": 3, "k4": None, "k5": 2, "k6": 6, "k7": 1},
]
TABLE = {"k1": 7, "k2": 4, "k3": 3, "k5": 2, "k6": 6, "k7": 1}


def updates(batch: Batch) -> dict[str, int | None]:
    assert len({row["key"] for row in batch}) == len(batch)
    return {row["key"]: row.get("value") for row in batch}


def table(test: AppTest) -> dict[str, int]:
    return {key: row["value"] for (key,), row in test.table.items()}


def found(spark: SparkSession, app: App) -> tuple[list[dict[str, int | None]], dict[str, int], int]:
    """The updates of each batch, with a restart between them; the table; how many rows were late."""
    told, late = [], 0
    with AppTest(spark, app) as test:
        for records in BATCHES:
            test.restart()
            for key, value, time, *rest in records:
                json = None if value is None else {"value": value}
                test.send("values", json, key=key, time=time, partition=rest[0] if rest else 0)
            batch = test.run()
            told.append(updates(batch))
            late += batch.late
        return told, table(test), late


def test_golden_the_table_and_its_stream_of_updates_also_after_a_restart(spark: SparkSession) -> None:
    assert found(spark, latest_value) == (UPDATES, TABLE, 0)


BAD: list[tuple[Any, Any, str]] = [
    ("k1", "not json", "the value is not JSON: Expecting value at character 0"),
    ("k1", {"note": "no value"}, "field value is missing"),
    ("k1", {"value": None}, "field value is missing"),
    ("k1", {"value": "seven"}, "field value is not bigint"),
    ("k1", {"value": 2**63}, "field value is not bigint"),
    (None, {"value": 1}, "the key is null"),
    (None, None, "the key is null"),
    (b"\xff", {"value": 1}, "the key is not UTF-8"),
    ("k1", b"\xff" * 2_000_000, "the value is not UTF-8"),
]


def test_a_bad_record_is_a_dead_letter_and_its_key_keeps_its_value(spark: SparkSession) -> None:
    with AppTest(spark, latest_value) as test:
        test.send("values", {"value": 7}, key="k1")
        for key, value, _ in BAD:
            test.send("values", value, key=key)
        # 2 MB of another field, and the same record twice
        for _ in range(2):
            test.send("values", {"value": 9, "note": "x" * 2_000_000}, key="k2")
        # deletes what is not there
        test.send("values", None, key="k3")
        batch = test.run()
        assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
        assert updates(batch) == {"k1": 7, "k2": 9, "k3": None}
        assert table(test) == {"k1": 7, "k2": 9}
        assert batch.late == 0 and batch.watermark is None


def test_definition() -> None:
    assert latest_value.name == "latest-value"
    assert latest_value.results[""].key == ("key",)
    assert latest_value.output_mode == "update"


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('F.struct("partition", "offset")', '"offset"'),
        ('F.struct("partition", "offset")', '"event_time"'),
        ("F.max_by(", "F.min_by("),
        ('F.max_by("value", F.struct("partition", "offset"))', 'F.max("value")'),
        ("values.groupBy(", 'values.where(~F.col("deleted")).groupBy('),
        ('.groupBy("key")', '.groupBy(F.lit("k1").alias("key"))'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert found(spark, mutant(latest_value, there, instead)) != (UPDATES, TABLE, 0)
