"""Golden test of bookings: reservations in, what three departments are told out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.bookings import bookings
from pipelines.model import App
from pipelines.testing import AppTest, Batch
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=2_000, per_second=20, at_least=3_000)

GOOD: dict[str, Any] = {
    "booking": "b-1", "guest": "ada", "email": "ada@example.com", "hotel": "Grand", "arrives": "2026-02-27", "nights": 3,
    "price": 412.5,
}  # fmt: skip
# what is wrong with a reservation, and the reason
BAD: list[tuple[Any, str]] = [
    (b"not json", "the value is not JSON"),
    ({**GOOD, "hotel": None}, "field hotel is missing"),
    ({name: value for name, value in GOOD.items() if name != "email"}, "field email is missing"),
    ({**GOOD, "nights": "three"}, "field nights is not int"),
    ({**GOOD, "arrives": "30 February"}, "field arrives is not date"),
    (None, "the value is null"),
]
EXPECTED: dict[str, list[dict[str, Any]]] = {
    "confirmations": [
        {"guest": "ada", "booking": "b-1", "email": "ada@example.com", "hotel": "Grand", "arrives": "2026-02-27", "nights": 3},
        {"guest": "ben", "booking": "b-2", "email": "ada@example.com", "hotel": "Grand", "arrives": "2026-12-31", "nights": 1},
    ],
    "calendar": [
        {"hotel": "Grand", "booking": "b-1", "arrives": "2026-02-27", "leaves": "2026-03-02"},
        {"hotel": "Grand", "booking": "b-2", "arrives": "2026-12-31", "leaves": "2027-01-01"},
    ],
    "customer-360": [
        {"guest": "ada", "booking": "b-1", "hotel": "Grand", "nights": 3, "spent": 412.5},
        {"guest": "ben", "booking": "b-2", "hotel": "Grand", "nights": 1, "spent": 412.5},
    ],
}  # fmt: skip


def run(spark: SparkSession, app: App) -> Batch:
    with AppTest(spark, app) as test:
        test.send("bookings", GOOD, key="b-1")
        test.send("bookings", {**GOOD, "booking": "b-2", "guest": "ben", "arrives": "2026-12-31", "nights": 1})
        for value, _ in BAD:
            test.send("bookings", value)
        return test.run()


def found(batch: Batch) -> dict[str, list[dict[str, Any]]]:
    return {name: sorted(batch[name], key=lambda row: str(row["booking"])) for name in bookings.results}


def test_golden_and_what_is_bad_is_a_dead_letter(spark: SparkSession) -> None:
    batch = run(spark, bookings)
    assert found(batch) == EXPECTED
    assert sorted(zip(batch.names, batch.sources, strict=True)) == sorted(
        (name, f"bookings:0:{offset}") for name in EXPECTED for offset in (0, 1)
    )
    for letter, (_, reason) in zip(batch.dead_letters, BAD, strict=True):
        assert letter.reason.startswith(reason), letter


def test_a_reservation_counts_whatever_its_time_and_size_and_as_often_as_it_comes(spark: SparkSession) -> None:
    with AppTest(spark, bookings) as test:
        for time in ("2099-01-01T00:00:00Z", "1996-01-01T00:00:00Z", 0, 0):
            test.send("bookings", GOOD, time=time)
        test.send("bookings", {**GOOD, "email": "x" * 2_000_000})
        batch = test.run()
        # the confirmation alone is too large for a record
        assert [len(batch[name]) for name in bookings.results] == [4, 5, 5]
        [letter] = batch.dead_letters
        assert (letter.topic, letter.key, letter.value) == ("bookings.v1.g1.confirmations", b'{"guest":"ada"}', None)
        assert letter.headers["source"] == b"bookings:0:4" and "too large" in letter.reason
        assert batch.late == 0


IMPOSSIBLE: list[dict[str, Any]] = [
    {"nights": 0},
    {"nights": -1},
    {"nights": -(2**31)},
    # past the last date, and before the first
    {"nights": 2**31 - 1},
    {"arrives": "1900-01-01", "nights": -(2**31)},
    {"price": -0.01},
]


def possible(spark: SparkSession, app: App) -> Batch:
    with AppTest(spark, app) as test:
        for change in IMPOSSIBLE:
            test.send("bookings", {**GOOD, **change})
        test.send("bookings", {**GOOD, "nights": 1, "price": 0})
        return test.run()


def test_a_reservation_that_nobody_could_act_on_reaches_no_department(spark: SparkSession) -> None:
    batch = possible(spark, bookings)
    assert batch.dead_letters == []
    assert sorted(batch.names) == sorted(bookings.results)
    assert batch["calendar"][0]["leaves"] == "2026-02-28"


@pytest.mark.long
@pytest.mark.parametrize(
    "there", ['(F.col("nights") > 0) & ', ' & (leaves > F.col("arrives"))', ' & (F.col("price") >= 0)']
)
def test_a_fault_in_what_is_possible_is_seen(spark: SparkSession, there: str) -> None:
    assert len(possible(spark, mutant(bookings, there, ""))["calendar"]) > 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('F.date_add("arrives", F.col("nights"))', 'F.col("arrives")'),
        ('F.col("price").alias("spent")', '(F.col("price") * F.col("nights")).alias("spent")'),
        (
            'F.struct("hotel", "booking", "arrives", leaves',
            'F.struct("hotel", "booking", leaves.alias("arrives"), leaves',
        ),
        ('"nights", *source).alias("confirmations")', 'F.lit(1).alias("nights"), *source).alias("confirmations")'),
        ("return possible.select(", "return possible.limit(1).select("),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert found(run(spark, mutant(bookings, there, instead))) != EXPECTED
