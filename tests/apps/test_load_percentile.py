"""Golden test of load-percentile: requests in, minutes out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.load_percentile import load_percentile
from pipelines.model import App
from pipelines.testing import AppTest, Batch
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# three minutes, of which two are over
LIFE = Life(records=4_000, per_second=20, at_least=50)

Request = tuple[str, int, float]
FIRST: list[Request] = [
    # host, latency in ms, seconds after noon
    ("a", 100, 59.999),
    *[("a", latency, 30) for latency in range(2, 100)],  # not the last, though they come later
    ("a", 1, 0),
    ("b", 20, 1),
    ("b", 10, 2),
    ("a", 1000, 180),
    ("a", 40, 309.5),
]
# the watermark is at 299.5: the first four minutes are over
FIRST_TOLD = {
    # host, minute -> requests, 99th percentile, average of five minutes
    ("a", 0): (100, 99, 50.5),
    ("a", 1): (0, None, 50.5),
    ("a", 2): (0, None, 50.5),
    ("a", 3): (1, 1000, 59.901),  # 6050 / 101
    ("b", 0): (2, 20, 15.0),
    ("b", 1): (0, None, 15.0),
    ("b", 2): (0, None, 15.0),
    ("b", 3): (0, None, 15.0),
}
SECOND: list[Request] = [
    ("a", 400, 239.999),  # late for its own minute, the fourth, in time for the four after it
    ("b", 30, 295),  # out of order, and in time
    ("z", 1, 1800),
]
SECOND_TOLD = {
    ("a", 4): (0, None, 63.2353),  # 6450 / 102
    ("a", 5): (1, 40, 480.0),
    ("a", 6): (0, None, 480.0),
    ("a", 7): (0, None, 480.0),
    ("a", 8): (0, None, 40.0),
    ("a", 9): (0, None, 40.0),
    ("b", 4): (1, 30, 20.0),
    ("b", 5): (0, None, 30.0),
    ("b", 6): (0, None, 30.0),
    ("b", 7): (0, None, 30.0),
    ("b", 8): (0, None, 30.0),
}
EXPECTED = (FIRST_TOLD, SECOND_TOLD, 1)


def told(batch: Batch, minutes: str = "2026-01-01T12:") -> dict[tuple[str, int], tuple[Any, ...]]:
    """Host and minute of the hour that `minutes` names -> what is told. Each must be told once."""
    rows = [row for row in batch if row["minute"].startswith(minutes)]
    found = {
        (row["host"], int(row["minute"][14:16])): (row["requests"], row["p99_ms"], row["average_ms"]) for row in rows
    }
    assert len(found) == len(rows)
    return found


def found(spark: SparkSession, app: App) -> tuple[Any, Any, int]:
    """What is told after FIRST and, with a restart between them, after SECOND; how many rows were late."""
    with AppTest(spark, app) as test:
        batches = []
        for requests in (FIRST, SECOND):
            test.restart()
            for host, latency, time in requests:
                test.send("requests", {"latency_ms": latency}, key=host, time=time)
            batches.append(test.run())
        return told(batches[0]), told(batches[1]), batches[1].late


def test_golden_each_minute_once_when_the_watermark_has_passed_it(spark: SparkSession) -> None:
    assert found(spark, load_percentile) == EXPECTED


BAD: list[tuple[Any, Any, str]] = [
    ("a", "not json", "the value is not JSON: Expecting value at character 0"),
    ("a", {"latency": 1}, "field latency_ms is missing"),
    ("a", {"latency_ms": "long"}, "field latency_ms is not int"),
    ("a", {"latency_ms": 1.5}, "field latency_ms is not int"),
    ("a", {"latency_ms": 2**31}, "field latency_ms is not int"),
    (None, {"latency_ms": 1}, "the key is null"),
    ("a", None, "the value is null"),
    ("a", b"\xff" * 2_000_000, "the value is not UTF-8"),
]


def test_a_bad_request_is_a_dead_letter_and_an_odd_time_is_a_time(spark: SparkSession) -> None:
    with AppTest(spark, load_percentile) as test:
        for key, value, _ in BAD:
            test.send("requests", value, key=key)
        # the same request twice, with 2 MB of another field; no sum is too large
        for _ in range(2):
            test.send("requests", {"latency_ms": 2**31 - 1, "note": "x" * 2_000_000}, key="a")
        test.send("requests", {"latency_ms": 5}, key="a", time="1996-01-01T00:00:00Z")
        test.send("requests", {"latency_ms": 5}, key="a", time="2099-01-01T00:00:00Z")
        batch = test.run()
        assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
        # an event of the far future ends all minutes before it
        largest = 2147483647.0
        expected = {("a", 0): (2, 2**31 - 1, largest), **{("a", m): (0, None, largest) for m in range(1, 5)}}
        assert told(batch) == expected
        old = {("a", 0): (1, 5, 5.0), **{("a", m): (0, None, 5.0) for m in range(1, 5)}}
        assert told(batch, "1996-01-01T00:") == old
        assert len(batch) == 10
        # and all after it are late, each for its five windows
        test.send("requests", {"latency_ms": 5}, key="a", time=600)
        batch = test.run()
        assert (batch.rows, batch.late) == ([], 5)


def test_definition() -> None:
    assert load_percentile.name == "load-percentile"
    assert load_percentile.results[""].key == ("host", "minute")
    assert load_percentile.output_mode == "append"
    assert load_percentile.watermark == "10 seconds"


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('"5 minutes", ', '"4 minutes", '),
        (', "1 minute"', ', "2 minutes"'),
        ("window.end - INTERVAL 1 MINUTE", "window.start"),
        ('F.col("event_time") >= minute', 'F.col("event_time") > minute'),
        ('F.count("own")', 'F.count("latency_ms")'),
        ("percentile_disc(0.99)", "percentile_disc(0.98)"),
        ("percentile_disc(0.99)", "percentile_cont(0.99)"),
        ("percentile_disc(0.99)", "percentile_disc(1.0)"),
        ('F.avg(F.col("latency_ms")', 'F.avg(F.col("own")'),
        ('F.avg(F.col("latency_ms").cast("decimal(10,0)"))', 'F.avg("latency_ms")'),
        ('.groupBy("host", ', '.groupBy(F.lit("a").alias("host"), '),
        ('emit="final"', 'emit="update"'),
        ('watermark="10 seconds"', 'watermark="9 seconds"'),
        ('watermark="10 seconds"', 'watermark="70 seconds"'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    faulty = mutant(load_percentile, there, instead)
    try:
        seen = found(spark, faulty)
    except AssertionError:
        # a minute was told twice
        return
    assert seen != EXPECTED
