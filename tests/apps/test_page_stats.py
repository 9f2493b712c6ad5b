"""Golden test of page-stats: clicks and profiles in, views of pages and zip codes out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.page_stats import page_stats
from pipelines.model import App
from pipelines.testing import AppTest
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=8_000, at_least=10)

# user, profile, seconds after noon; out of order
PROFILES: list[tuple[Any, Any, float]] = [
    ("ada", {"zip": "10115"}, 10),
    ("ada", {"zip": "20095"}, 30),
    ("ada", {"zip": "80331"}, 5),
    ("ben", {"zip": "10115"}, 0),
    ("ben", None, 40),  # nothing is known of ben any more
    ("cleo", {"zip": None}, 0),
    ("dora", {"age": 30}, 0),
]
CLICKS: list[tuple[Any, Any, float]] = [
    ("ada", "/a", 4.999),  # before the first profile
    ("ada", "/a", 5),  # at the very time
    ("ada", "/b", 29.999),
    ("ada", "/a", 30),
    ("ada", "/a", 59.999),
    ("ada", "/a", 60),  # of the next minute
    ("ben", "/a", 39),
    ("ben", "/a", 41),
    ("cleo", "/b", 20),
    ("dora", "/b", 20),
    ("emil", "/b", 20),  # unknown
    ("emil", "/b", 20),  # twice: both count
]
PAGES = {
    ("/a", "2026-01-01T12:00:00Z"): 6,
    ("/b", "2026-01-01T12:00:00Z"): 5,
    ("/a", "2026-01-01T12:01:00Z"): 1,
}
ZIPS = {
    ("80331", "2026-01-01T12:00:00Z"): 1,
    ("10115", "2026-01-01T12:00:00Z"): 2,  # ada at 29.999, ben at 39
    ("20095", "2026-01-01T12:00:00Z"): 2,
    ("20095", "2026-01-01T12:01:00Z"): 1,
}


def send(test: AppTest, clicks: list[Any], profiles: list[Any]) -> None:
    for user, page, time in clicks:
        test.send("clicks", {"page": page}, key=user, time=time)
    for user, profile, time in profiles:
        test.send("profiles", profile, key=user, time=time)


def run(spark: SparkSession, app: App) -> dict[str, list[tuple[Any, ...]]]:
    """What is told, if the profiles come after the first clicks and in another process."""
    told: dict[str, list[tuple[Any, ...]]] = {name: [] for name in app.results}
    with AppTest(spark, app) as test:
        send(test, CLICKS[:2], [])
        batches = [test.run()]
        test.restart()
        send(test, CLICKS[2:], PROFILES)
        batches += [test.run(), test.advance_watermark(200)]
    for batch in batches:
        assert batch.late == 0
        for name in told:
            told[name] += [tuple(row.values()) for row in batch[name]]
    return {name: sorted(rows, key=str) for name, rows in told.items()}


EXPECTED = {
    "pages": sorted((*key, views) for key, views in PAGES.items()),
    "zips": sorted((*key, views) for key, views in ZIPS.items()),
}


def test_golden(spark: SparkSession) -> None:
    assert run(spark, page_stats) == EXPECTED


BAD: list[tuple[str, Any, Any, str]] = [
    ("clicks", "ada", "not json", "the value is not JSON: Expecting value at character 0"),
    ("clicks", "ada", {"url": "/a"}, "field page is missing"),
    ("clicks", None, {"page": "/a"}, "the key is null"),
    ("clicks", "ada", None, "the value is null"),
    ("clicks", "ada", b"\xff" * 2_000_000, "the value is not UTF-8"),
    ("profiles", "ada", "1", "the value is a number, not a JSON object"),
    ("profiles", None, {"zip": "1"}, "the key is null"),
]


def test_what_is_bad_is_a_dead_letter_and_what_is_late_is_dropped(spark: SparkSession) -> None:
    with AppTest(spark, page_stats) as test:
        for source, key, value, _ in BAD:
            test.send(source, value, key=key)
        send(test, [("ada", "/a", "1996-01-01T00:00:00Z")], [])
        test.send("clicks", {"page": "/b", "note": "x" * 2_000_000}, key="ada", time=0)
        batch = test.run()
        letters = sorted((letter.topic, letter.reason) for letter in batch.dead_letters)
        assert letters == sorted((source, reason) for source, _, _, reason in BAD)
        # the watermark is at noon less 10 s
        assert [row["minute"] for row in batch["pages"]] == ["1996-01-01T00:00:00Z"]
        send(test, [("ada", "/b", -10), ("ada", "/b", -9.999)], [])
        assert test.run().late == 1
        send(test, [("ada", "/a", "2099-01-01T00:00:00Z")], [])
        # as in every app with a watermark: what comes after is late, until it is past 2099
        assert [(row["page"], row["minute"], row["views"]) for row in sorted(test.run()["pages"], key=str)] == [
            ("/b", "2026-01-01T11:59:00Z", 1),
            ("/b", "2026-01-01T12:00:00Z", 1),
        ]
        send(test, [("ada", "/a", 1)], [])
        assert test.run().late == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("as_of(clicks, profiles", "as_of(clicks, profiles.where('not deleted')"),
        ("as_of(clicks, profiles", "as_of(clicks, profiles.where('zip is not null')"),
        ('F.struct(nothing.alias("page"), "zip")', 'F.struct("page", "zip")'),
        (' | F.col("zip").isNotNull()', ""),
        ('F.window("event_time", "1 minute")', 'F.window("event_time", "2 minutes")'),
        ('"window.start"', '"window.end"'),
        ("F.count(F.lit(1))", "F.approx_count_distinct('event_time')"),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert run(spark, mutant(page_stats, there, instead)) != EXPECTED
