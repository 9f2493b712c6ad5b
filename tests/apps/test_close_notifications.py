"""Golden test of close-notifications: events in, messages out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.close_notifications import close_notifications
from pipelines.model import App
from pipelines.testing import AppTest
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=4_000, at_least=1_000)

TOLD = "You are not currently viewing Facebook."
EVENTS: list[tuple[Any, Any]] = [
    ("ada", "Open"),
    ("ada", "Close"),
    ("ben", "Close"),  # also who was not seen to open it
    ("ada", "Close"),  # twice: told twice, it came in twice
    ("cleo", "close"),  # no such event
    ("cleo", ""),
    ("dora", "Closed"),
    (None, "Close"),
    ("emil", None),
    ("fay", b"\xff" * 2_000_000),
    (b"\xff", "Close"),
    ("gus", "x" * 2_000_000),
]
EXPECTED = [
    ("ada", TOLD, "open:0:1"),
    ("ben", TOLD, "open:0:2"),
    ("ada", TOLD, "open:0:3"),
    ("hana", TOLD, "open:0:12"),
    ("hana", TOLD, "open:0:13"),
]


def run(spark: SparkSession, app: App) -> Any:
    with AppTest(spark, app) as test:
        for user, state in EVENTS:
            test.send("open", state, key=user)
        # times don't matter
        for time in ("2099-01-01T00:00:00Z", "1996-01-01T00:00:00Z"):
            test.send("open", "Close", key="hana", time=time)
        return test.run()


def found(batch: Any) -> list[tuple[Any, ...]]:
    return [(row["user"], row["message"], source) for row, source in zip(batch.rows, batch.sources, strict=True)]


@pytest.mark.usefixtures("compiled")
def test_golden_and_what_is_bad_is_a_dead_letter(spark: SparkSession) -> None:
    batch = run(spark, close_notifications)
    assert found(batch) == EXPECTED
    assert [(letter.offset, letter.reason) for letter in batch.dead_letters] == [
        (7, "the key is null"),
        (8, "the value is null"),
        (9, "the value is not UTF-8"),
        (10, "the key is not UTF-8"),
    ]
    assert batch.late == 0 and batch.watermark is None


def test_definition() -> None:
    assert close_notifications.name == "close-notifications"
    assert close_notifications.results[""].key == ("user",)
    assert close_notifications.output_mode == "append"


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('== "Close"', '!= "Open"'),
        ('F.col("state") == "Close"', 'F.lower("state") == "close"'),
        ('F.col("state") == "Close"', 'F.col("state").startswith("Close")'),
        ("closed.select(", "closed.dropDuplicates(['user']).select("),
        ('F.lit("You are not', 'F.lit("You are'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert sorted(found(run(spark, mutant(close_notifications, there, instead)))) != sorted(EXPECTED)
