"""Golden test of search-results: searches and clicks in, ranks out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.search_results import ranked, search_results
from pipelines.model import App
from pipelines.testing import AppTest, Batch
from tests.apps.lives import Life
from tests.apps.memory import Memory
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("frames_of_two")]

LIFE = Life(records=4_000, at_least=100)

# user, terms or page, seconds after noon
FIRST_SEARCHES = [("ada", "spark", 0), ("ben", "spark", 0), ("cleo", "kafka", 0)]
FIRST_CLICKS = [
    ("ada", "p1", 5),  # just within
    ("ada", "p9", 5.001),  # too late after it
    ("ben", "p1", -5),  # before it, and just within
    ("ben", "p9", -5.001),
    ("ben", "p2", 1),
    ("ben", "p3", 1),
    ("cleo", "p3", 2),  # of another query
    ("dora", "p1", 0),  # who searched nothing
]
FIRST_TOLD = {
    # query, result -> clicks, rank
    ("spark", "p1"): (2, 1),
    ("spark", "p2"): (1, 2),
    ("spark", "p3"): (1, 2),
    ("kafka", "p3"): (1, 1),
}
# the watermark is at -4.999
SECOND_SEARCHES = [
    ("dora", "spark", 3),  # for a click that came before it
    ("dora", "flink", 4),  # the same click counts for both
    ("emil", "kafka", -5),  # late
]
SECOND_CLICKS = [
    ("ben", "p2", 1),  # twice: it counts twice
    ("ben", "p2", 2),
    ("ada", "p2", -4.998),  # out of order, and in time for the search of the first batch
    ("ada", "p3", -5),  # late
    ("emil", "p1", -4),
    ("cleo", "p4", 1),  # changes nothing for p3
]
SECOND_TOLD = {
    ("spark", "p1"): (3, 2),  # one of dora's, and down a rank
    ("spark", "p2"): (4, 1),
    ("spark", "p3"): (1, 3),  # no click, but down a rank
    ("flink", "p1"): (1, 1),
    ("kafka", "p4"): (1, 1),
}
# a click, and a search in both of its spans
LATE = 3
EXPECTED = (FIRST_TOLD, SECOND_TOLD, LATE)


def told(batch: Batch) -> dict[tuple[str, str], tuple[int, int]]:
    found = {(row["query"], row["result"]): (row["clicks"], row["rank"]) for row in batch}
    assert len(found) == len(batch)
    return found


def send(test: AppTest, searches: list[Any], clicks: list[Any]) -> None:
    for user, terms, time in searches:
        test.send("searches", {"terms": terms}, key=user, time=time)
    for user, page, time in clicks:
        test.send("clicks", {"page": page}, key=user, time=time)


def found(spark: SparkSession, app: App) -> tuple[Any, Any, int]:
    """What is told of the first searches and clicks and, after a restart, of the second ones; how many rows were late."""
    with AppTest(spark, app) as test:
        send(test, FIRST_SEARCHES, FIRST_CLICKS)
        first = told(test.run())
        test.restart()
        send(test, SECOND_SEARCHES, SECOND_CLICKS)
        batch = test.run()
        return first, told(batch), batch.late


def test_golden(spark: SparkSession) -> None:
    assert found(spark, search_results) == EXPECTED


def test_results_with_as_many_clicks_share_a_rank() -> None:
    clicks = {"a": 5, "b": 7, "c": 5, "d": 1, "e": 7}
    assert ranked(clicks) == {"a": (5, 3), "b": (7, 1), "c": (5, 3), "d": (1, 5), "e": (7, 1)}
    assert ranked({}) == {}


BAD: list[tuple[str, Any, Any, str]] = [
    ("searches", "ada", "not json", "the value is not JSON: Expecting value at character 0"),
    ("searches", "ada", {"note": "no terms"}, "field terms is missing"),
    ("searches", None, {"terms": "spark"}, "the key is null"),
    ("searches", "ada", None, "the value is null"),
    ("searches", "ada", b"\xff" * 2_000_000, "the value is not UTF-8"),
    ("clicks", "ada", "1", "the value is a number, not a JSON object"),
    ("clicks", "ada", {"page": None}, "field page is missing"),
    ("clicks", None, {"page": "p1"}, "the key is null"),
    ("clicks", "ada", None, "the value is null"),
]


def test_what_is_bad_is_a_dead_letter_and_an_odd_time_is_a_time(spark: SparkSession) -> None:
    with AppTest(spark, search_results, within_s=1) as test:
        for source, key, value, _ in BAD:
            test.send(source, value, key=key)  # type: ignore[arg-type]
        # a search that comes twice makes two of each click
        send(test, [("ada", "spark", 0), ("ada", "spark", 0)], [("ada", "p1", 1), ("ada", "p1", 1.001)])
        # 2 MB of another field
        test.send("clicks", {"page": "p2", "note": "x" * 2_000_000}, key="ada", time=0)
        for time in ("1996-01-01T00:00:00Z", "2099-01-01T00:00:00Z"):
            send(test, [("ben", "spark", time)], [("ben", "p3", time)])
        batch = test.run()
        letters = {(letter.topic, letter.reason) for letter in batch.dead_letters}
        assert letters == {(source, reason) for source, _, _, reason in BAD} and len(batch.dead_letters) == len(BAD)
        assert told(batch) == {("spark", "p1"): (2, 1), ("spark", "p2"): (2, 1), ("spark", "p3"): (2, 1)}
        # as in every app with a watermark: what comes after is late, until it is past 2099
        send(test, [], [("ada", "p1", 0)])
        batch = test.run()
        assert (batch.rows, batch.late) == ([], 1)


def test_definition() -> None:
    assert search_results.name == "search-results"
    assert search_results.results[""].key == ("query", "result")
    assert search_results.output_mode == "append"
    assert search_results.watermark == "10 seconds"
    assert dict(search_results.settings) == {"within_s": 5}


def ranks(app: App) -> list[list[dict[str, Any]]]:
    """What the app's own processor tells of clicks in two batches, in this process."""
    memory = Memory(lambda: app.function.__globals__["Ranking"](), "query")
    batches = [("p1", "p2", "p2", "p3"), ("p1", "p4")]
    return [memory.run([{"query": "spark", "result": page} for page in pages]) for pages in batches]


RANKS = [
    # result -> clicks, rank; nothing changes for p2, and p3 is down a rank
    {"p1": (1, 2), "p2": (2, 1), "p3": (1, 2)},
    {"p1": (2, 1), "p3": (1, 3), "p4": (1, 3)},
]


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("clicks.get(result, 0) + 1", "1"),
        ("self._clicks.update((clicks,))", "pass"),
        (" if place != was.get(result)]", "]"),
        ("for result, place in now.items()", "for result, place in now.items() if now[result][0] > 1"),
        ("reverse=True", "reverse=False"),
        ("start=1", "start=0"),
        ("ranks.setdefault(count, rank)", "ranks[count] = rank"),
    ],
)
def test_a_fault_in_any_clause_of_the_ranking_is_seen(there: str, instead: str) -> None:
    def told_of(app: App) -> list[dict[str, tuple[int, int]]]:
        return [{row["result"]: (row["clicks"], row["rank"]) for row in batch} for batch in ranks(app)]

    assert told_of(search_results) == RANKS
    assert told_of(mutant(search_results, there, instead)) != RANKS


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('F.col("asked_at") - within', 'F.col("asked_at")'),
        ('F.col("asked_at") + within', 'F.col("asked_at")'),
        ("{settings.within_s} SECONDS", "4 SECONDS"),
        ("{settings.within_s} SECONDS", "6 SECONDS"),
        ('F.col("user").alias("asker")', 'F.lit("ada").alias("asker")'),
        ('F.col("span") == F.col("asked_span")', 'F.col("span") + 1 == F.col("asked_span")'),
        ("{span.format(-within_ms)}, {span.format(within_ms)}", "{span.format(within_ms)}, {span.format(within_ms)}"),
        ("{span.format(-within_ms)}, {span.format(within_ms)}", "{span.format(-within_ms)}, {span.format(-within_ms)}"),
        ('F.col("terms").alias("query")', 'F.lit("spark").alias("query")'),
        ('watermark="10 seconds"', 'watermark="11 seconds"'),
    ],
)
def test_a_fault_in_any_clause_of_the_join_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert found(spark, mutant(search_results, there, instead)) != EXPECTED
