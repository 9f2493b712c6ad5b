"""Golden test of not-viewing: ticks and events in, messages out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.not_viewing import not_viewing
from pipelines.model import App
from pipelines.testing import AppTest, at
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=4_000, at_least=100)

TOLD = "You are not currently viewing Facebook."
# user, state, seconds after noon; they come as they stand here, out of order
EVENTS: list[tuple[Any, Any, float]] = [
    ("ada", "Close", 2),
    ("ada", "Open", 1),
    ("ada", "Open", 4),
    ("ben", "Open", 1),
    ("cleo", "close", 1),  # no such state
    ("dora", "Closed", 1),
    ("emil", "Close", 1),
    ("emil", None, 2),  # deleted
    (None, "Close", 1),
    (b"\xff", "Close", 1),
    ("gus", b"\xff" * 2_000_000, 1),
    ("gus", "x" * 2_000_000, 0.5),
]
TICKS: list[tuple[Any, Any, float]] = [
    ("ada", "tick", 0.9),  # no state yet
    ("ada", "tick", 1.999),
    ("ada", "tick", 2),  # at the very time
    ("ada", "tick", 3),
    ("ada", "tick", 3),  # twice: told twice, it came in twice
    ("ada", "tick", 4),
    ("ben", "tick", 1.5),
    ("cleo", "tick", 1.5),
    ("dora", "tick", 1.5),
    ("emil", "tick", 1.5),
    ("emil", "tick", 2.1),
    ("fay", "tick", 1.5),
    ("gus", "tick", 1.5),
    ("ada", None, 3),
    ("ada", b"\xff", 3),
    (None, "tick", 3),
]
EXPECTED = [
    ("ada", TOLD, "2026-01-01T12:00:02.000Z", "tick:0:2"),
    ("ada", TOLD, "2026-01-01T12:00:03.000Z", "tick:0:3"),
    ("ada", TOLD, "2026-01-01T12:00:03.000Z", "tick:0:4"),
    ("emil", TOLD, "2026-01-01T12:00:01.500Z", "tick:0:9"),
]


def run(spark: SparkSession, app: App) -> tuple[list[tuple[Any, ...]], Any, Any]:
    with AppTest(spark, app) as test:
        for user, tick, time in TICKS:
            test.send("tick", tick, key=user, time=time)
        first = test.run()
        # in another process, and after the ticks
        test.restart()
        for user, state, time in EVENTS:
            test.send("open", state, key=user, time=time)
        second = test.run()
        last = test.advance_watermark(100)
        return [*found(first), *found(second), *found(last)], first, second


def found(batch: Any) -> list[tuple[Any, ...]]:
    return [
        (row["user"], row["message"], row["at"], source) for row, source in zip(batch.rows, batch.sources, strict=True)
    ]


@pytest.mark.usefixtures("compiled")
def test_golden_and_what_is_bad_is_a_dead_letter(spark: SparkSession) -> None:
    told, first, second = run(spark, not_viewing)
    assert sorted(told) == EXPECTED
    assert [(letter.topic, letter.offset, letter.reason) for letter in first.dead_letters + second.dead_letters] == [
        ("tick", 13, "the value is null"),
        ("tick", 14, "the value is not UTF-8"),
        ("tick", 15, "the key is null"),
        ("open", 8, "the key is null"),
        ("open", 9, "the key is not UTF-8"),
        ("open", 10, "the value is not UTF-8"),
    ]
    assert (first.late, second.late) == (0, 0)


def test_told_at_every_tick_until_they_open_again_and_late_input_is_counted(spark: SparkSession) -> None:
    with AppTest(spark, not_viewing) as test:
        test.send("open", "Close", key="ada", time=0)
        ticks = range(1, 6)
        for second in ticks:
            test.send("tick", "tick", key="ada", time=second)
            test.run()
        test.send("open", "Open", key="ada", time=3.5)
        batches = [test.run(), test.advance_watermark(10)]
        assert [row["at"][17:19] for batch in batches for row in batch] == ["01", "02", "03"]
        # late: the tick is dropped; the state holds from now on
        test.send("tick", "tick", key="ada", time=4)
        test.send("open", "Close", key="ada", time=4)
        assert test.run().late == 2
        test.send("tick", "tick", key="ada", time=11)
        test.run()
        assert [row["at"][17:19] for row in test.advance_watermark(11)] == ["11"]


def test_an_event_of_2099_moves_the_watermark_and_one_of_1996_is_a_state(spark: SparkSession) -> None:
    with AppTest(spark, not_viewing) as test:
        test.send("open", "Close", key="hana", time="1996-01-01T00:00:00Z")
        test.send("tick", "tick", key="hana", time=0)
        test.send("tick", "tick", key="hana", time="2099-01-01T00:00:00Z")
        batch = test.run()
        assert [row["at"] for row in batch] == ["2026-01-01T12:00:00.000Z"]
        # as in every app with a watermark: what comes after is late, until it is past 2099
        assert batch.watermark == at("2098-12-31T23:59:50Z")
        test.send("tick", "tick", key="hana", time=1)
        assert test.run().late == 1


def test_definition() -> None:
    assert not_viewing.name == "not-viewing"
    assert not_viewing.results[""].key == ("user",)
    assert not_viewing.output_mode == "append"


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('== "Close"', '!= "Open"'),
        ('F.col("state") == "Close"', 'F.lower("state") == "close"'),
        ('F.col("state") == "Close"', 'F.col("state").startswith("Close")'),
        ('F.col("state") == "Close"', "F.col('state').isNull()"),
        ("as_of(tick, open", "as_of(tick, open.where(~F.col('deleted'))"),
        ("as_of(tick, open", "as_of(tick.dropDuplicates(['user']), open"),
        ('F.lit("You are not', 'F.lit("You are'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert sorted(run(spark, mutant(not_viewing, there, instead))[0]) != EXPECTED
