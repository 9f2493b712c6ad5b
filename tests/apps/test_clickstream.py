"""Golden test of clickstream: clicks, profiles and searches in, joined clicks out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.clickstream import clickstream
from pipelines.model import App
from pipelines.testing import AppFailed, AppTest
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=4_000, at_least=400)

ADA = {"age": 36, "gender": "female", "interests": ["chess", "music"], "zip": "10115"}
MOVED = {**ADA, "age": 37, "interests": [], "zip": "20095"}
BEN = {"age": 50, "zip": "80331"}
# user, profile, seconds after noon; out of order
PROFILES: list[tuple[Any, Any, float]] = [
    ("ada", MOVED, 20),
    ("ada", ADA, 10),
    ("ben", BEN, 5),
    ("ben", None, 15),
]
SEARCHES: list[tuple[Any, Any, float]] = [
    ("ada", "spark", 11),
    ("ada", "kafka", 11.5),
    ("ben", "spark", 30),
    ("cleo", "flink", 11),
]
# what is clicked, and which searches, and whose profile the click is told with
CLICKS: list[tuple[str, str, float, list[str | None], dict[str, Any]]] = [
    ("ada", "/first", 9.999, [None], {}),  # before any profile
    ("ada", "/at", 10, [None], ADA),  # at the very time
    ("ada", "/before", 10.999, [None], ADA),  # before the search
    ("ada", "/same", 11, ["spark"], ADA),
    ("ada", "/both", 11.75, ["kafka", "spark"], ADA),
    ("ada", "/just", 12, ["kafka", "spark"], ADA),  # exactly a second after it
    ("ada", "/one", 12.001, ["kafka"], ADA),
    ("ada", "/none", 12.501, [None], ADA),
    ("ada", "/moved", 20, [None], MOVED),  # a new profile changes later clicks only
    ("ben", "/known", 14, [None], BEN),
    ("ben", "/left", 30.5, ["spark"], {}),  # deleted
    ("ben", "/twice", 30.5, ["spark"], {}),
    ("ben", "/twice", 30.5, ["spark"], {}),  # twice: told twice
    ("cleo", "/new", 11, ["flink"], {}),  # no profile at all
    ("dora", "/new", 11, [None], {}),  # what others search is not hers
]
EXPECTED = sorted(
    (
        (user, page, terms, *(profile.get(name) for name in ("age", "gender", "interests", "zip")))
        for user, page, _, searches, profile in CLICKS
        for terms in searches
    ),
    key=str,
)


def send(test: AppTest, clicks: list[Any], profiles: list[Any], searches: list[Any]) -> None:
    for user, page, time in clicks:
        test.send("clicks", {"page": page}, key=user, time=time)
    for user, profile, time in profiles:
        test.send("profiles", profile, key=user, time=time)
    for user, terms, time in searches:
        test.send("searches", {"terms": terms}, key=user, time=time)


def run(spark: SparkSession, app: App) -> list[tuple[Any, ...]]:
    """What is told of the clicks, if profiles and searches come after them and in other processes."""
    with AppTest(spark, app) as test:
        rows = []
        # the newest click comes last: it would move the watermark
        clicks = [(user, page, time) for user, page, time, *_ in CLICKS]
        for sent in (
            ([click for click in clicks if click[2] < 20], [], []),
            ([], [], SEARCHES[1:2] + SEARCHES[3:]),
            ([click for click in clicks if click[2] >= 20], PROFILES, SEARCHES[:1] + SEARCHES[2:3]),
        ):
            test.restart()
            send(test, *sent)
            told = test.run()
            assert told.late == 0
            rows += told.rows
        rows += test.advance_watermark(100).rows
    names = ("user", "page", "terms", "age", "gender", "interests", "zip")
    assert all(set(row) == {*names, "at"} for row in rows)
    assert {row["at"] for row in rows if row["page"] == "/first"} <= {"2026-01-01T12:00:09.999Z"}
    return sorted((tuple(row[name] for name in names) for row in rows), key=str)


def test_golden(spark: SparkSession) -> None:
    assert run(spark, clickstream) == EXPECTED


BAD: list[tuple[str, Any, Any, str]] = [
    ("clicks", "ada", "not json", "the value is not JSON: Expecting value at character 0"),
    ("clicks", "ada", {"url": "/a"}, "field page is missing"),
    ("clicks", None, {"page": "/a"}, "the key is null"),
    ("clicks", "ada", None, "the value is null"),
    ("profiles", "ada", {"age": "old"}, "field age is not int"),
    ("profiles", None, ADA, "the key is null"),
    ("searches", "ada", {"terms": None}, "field terms is missing"),
    ("searches", "ada", None, "the value is null"),
    ("searches", None, {"terms": "spark"}, "the key is null"),
    ("searches", "ada", b"\xff" * 2_000_000, "the value is not UTF-8"),
]


def test_what_is_bad_is_a_dead_letter_and_what_is_late_is_dropped(spark: SparkSession) -> None:
    with AppTest(spark, clickstream) as test:
        for source, key, value, _ in BAD:
            test.send(source, value, key=key)
        send(test, [("ada", "/old", "1996-01-01T00:00:00Z"), ("ada", "/a", 0)], [], [("ada", "spark", 0)])
        batch = test.run()
        letters = sorted((letter.topic, letter.reason) for letter in batch.dead_letters)
        assert letters == sorted((source, reason) for source, _, _, reason in BAD)
        # the watermark is at noon less 10 s
        assert [row["page"] for row in batch] == ["/old"]
        send(test, [("ada", "/late", -10)], [("ada", ADA, -10)], [("ada", "late", -10)])
        # the profile is late, too, and holds for what is not decided yet
        assert test.run().late == 3
        test.send("searches", {"terms": "kafka", "note": "x" * 2_000_000}, key="ada", time=0)
        send(test, [("ada", "/b", "2099-01-01T00:00:00Z")], [], [])
        assert sorted((row["page"], row["terms"], row["age"]) for row in test.run()) == [
            ("/a", "kafka", 36),
            ("/a", "spark", 36),
        ]
        # as in every app with a watermark: what comes after is late, until it is past 2099
        send(test, [("ada", "/c", 1)], [], [])
        assert test.run().late == 1


def test_less_than_no_time_is_refused(spark: SparkSession) -> None:
    with (
        AppTest(spark, clickstream, within_ms=-1) as test,
        pytest.raises(AppFailed, match="within_ms must be 0 or more"),
    ):
        test.run()


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("as_of(clicks, profiles", "as_of(clicks, profiles.where('not deleted')"),
        ("as_of(clicks, profiles, on=", "as_of(clicks, profiles.where('age is null or age < 37'), on="),
        ('"left_outer"', '"inner"'),
        ('F.col("user") == F.col("asker")', 'F.length("user") == F.length("asker")'),
        ('between(F.col("asked_at"), ', 'between(F.col("asked_at") - within, '),
        ('F.col("asked_at") + within)', 'F.col("asked_at") + within / 2)'),
        ("INTERVAL {settings.within_ms} MILLISECONDS", "INTERVAL {settings.within_ms - 1} MILLISECONDS"),
        ("searches.select(", "searches.withColumn('terms', F.upper('terms')).select("),
        ('F.col("span") == F.col("asked_span")', 'F.col("span") + 1 == F.col("asked_span")'),
        ("{span.format(settings.within_ms)})", "{span.format(0)})"),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert run(spark, mutant(clickstream, there, instead)) != EXPECTED
