"""Golden test of notification-counts: notifications in, counts out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.notification_counts import notification_counts
from pipelines.model import App
from pipelines.testing import AppTest
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(reads="not-viewing", at_least=50)

# user and time of each notification; with windows of 20 minutes that advance by 10
TOLD = [("ada", "12:05"), ("ada", "12:19"), ("ada", "12:10"), ("ben", "12:20")]
EXPECTED = {
    ("ada", "11:50"): 1,
    ("ada", "12:00"): 3,
    ("ada", "12:10"): 2,
    ("ben", "12:10"): 1,
    ("ben", "12:20"): 1,
}
BAD: list[tuple[Any, Any, str]] = [
    (None, {"at": "2026-01-01T12:00:00.000Z"}, "the key is null"),
    ({"name": "ada"}, {"at": "2026-01-01T12:00:00.000Z"}, "field user is missing in the key"),
    ({"user": "ada"}, None, "the value is null"),
    ({"user": "ada"}, {}, "field at is missing"),
    ({"user": "ada"}, {"at": "noon"}, "field at is not timestamp"),
    ({"user": "ada"}, {"at": "294247-01-10T04:00:54.776Z"}, "field at is not timestamp"),
    ({"user": "ada"}, b"{", "the value is not JSON: Expecting property name enclosed in double quotes at character 1"),
]


def send(test: AppTest, user: str, time: str) -> None:
    # the record's own timestamp says when it was written
    test.send("told", {"message": "x", "at": f"2026-01-01T{time}:00.000Z"}, key={"user": user}, time=86_400)


def counts(test: AppTest) -> dict[tuple[str, str], int]:
    return {(user, start[11:16]): row["notifications"] for (user, start), row in test.table.items()}


def run(spark: SparkSession, app: App) -> Any:
    with AppTest(spark, app, window_s=1200, advance_s=600) as test:
        for user, time in TOLD[:2]:
            send(test, user, time)
        test.run()
        test.restart()
        for user, time in TOLD[2:]:
            send(test, user, time)
        test.run()
        return counts(test)


def test_golden(spark: SparkSession) -> None:
    assert run(spark, notification_counts) == EXPECTED


def test_what_comes_too_late_is_counted_and_what_is_bad_is_a_dead_letter(spark: SparkSession) -> None:
    with AppTest(spark, notification_counts, window_s=600, advance_s=600) as test:
        send(test, "ada", "13:00")
        for key, value, _ in BAD:
            test.send("told", value, key=key)
        batch = test.run()
        assert str(batch.watermark) == "2026-01-01 12:50:00+00:00"
        assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
        assert len(batch.rows) == 1
        send(test, "ada", "12:55")
        send(test, "ada", "12:39")
        batch = test.run()
        assert counts(test) == {("ada", "13:00"): 1, ("ada", "12:50"): 1} and batch.late == 1


def test_a_time_past_the_record_s_own_timestamp_is_a_dead_letter_and_makes_nothing_late(spark: SparkSession) -> None:
    with AppTest(spark, notification_counts, window_s=600, advance_s=600) as test:
        for at in ("2026-01-01T12:10:00.000Z", "2026-01-01T12:10:00.001Z", "2099-01-01T00:00:00.000Z"):
            test.send("told", {"message": "x", "at": at}, key={"user": "ada"})
        batch = test.run()
        assert str(batch.watermark) == "2026-01-01 12:00:00+00:00"
        said = (
            "field at is too far in the future: past the record's own timestamp by more than the delay of the watermark"
        )
        assert [letter.reason for letter in batch.dead_letters] == [said, said]
        test.send("told", {"message": "x", "at": "2026-01-01T12:00:00.000Z"}, key={"user": "ben"})
        assert test.run().late == 0
        assert counts(test) == {("ada", "12:10"): 1, ("ben", "12:00"): 1}


def test_an_odd_time_is_a_time_and_a_large_value_is_one_notification(spark: SparkSession) -> None:
    with AppTest(spark, notification_counts, window_s=600, advance_s=600) as test:

        def told(at: str, user: str = "ada", message: str = "x") -> None:
            test.send("told", {"message": message, "at": at}, key={"user": user}, time=86_400)

        told("2026-01-01T12:00:00.000Z", message="x" * 2_000_000)
        told("2026-01-01T12:00:00.000Z", user="x" * 2_000_000)
        test.send("told", b"\xff" * 2_000_000, key={"user": "ada"})
        told("1996-01-01T00:00:00.000Z")
        told("2099-01-01T00:00:00.000Z")
        batch = test.run()
        starts = ["1996-01-01T00:00:00Z", "2026-01-01T12:00:00Z"]
        assert sorted((row["window_start"], row["user"], row["notifications"]) for row in batch) == [
            (start, "ada", 1) for start in starts
        ]
        malformed, ahead, large = batch.dead_letters
        assert malformed.reason == "the value is not UTF-8"
        assert ahead.reason.startswith("field at is too far in the future")
        assert large.key is None and large.headers["key-start"].startswith(b'{"user":"xxx')
        told("2026-01-01T12:00:00.000Z")
        batch = test.run()
        assert (len(batch.rows), batch.late) == (1, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('time="at",', ""),
        ('.groupBy("user", window', ".groupBy(F.lit('ada').alias('user'), window"),
        ('f"{settings.advance_s} seconds")', 'f"{settings.window_s} seconds")'),
        ("F.count(F.lit(1))", "F.count_distinct(F.lit(1))"),
        ('"window.start"', '"window.end"'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    faulty = mutant(notification_counts, there, instead)
    try:
        found = run(spark, faulty)
    except Exception:
        return
    assert found != EXPECTED
