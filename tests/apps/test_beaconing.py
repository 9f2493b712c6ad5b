"""Golden test of beaconing: connections in, alerts out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.beaconing import beaconing
from pipelines.model import App
from pipelines.testing import AppFailed, AppTest, Batch
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# half an hour
LIFE = Life(records=8_000, per_second=4, at_least=5)

# windows of 100 s: from -50, 0 and 50 s after noon
SMALL: dict[str, Any] = {"window_s": 100, "advance_s": 50, "threshold": 4, "rarely": 6, "jitter": 0.1}

CONTACTS: dict[tuple[str, str], list[float]] = {
    # seconds after noon; out of order
    ("h1", "constant"): [45, 5, 85, 25, 65],
    # intervals 20 22 18 20, mean 20: two are off by exactly a tenth
    ("h2", "near"): [0, 20, 42, 60, 80],
    # intervals 20 23 17 20
    ("h2", "not near"): [0, 20, 43, 60, 80],
    # intervals 20 21 20, mean 61 / 3: the second is off by 2 / 61 of it
    ("h2", "a third"): [0, 20, 41, 61],
    # six contacts in the window from 0, four in that from -50
    ("h3", "six"): [2, 17, 32, 47, 62, 77],
    # one too many to talk rarely, in each window
    ("h3", "seven"): [52, 59, 66, 73, 80, 87, 94],
    # one too few
    ("h3", "three"): [55, 70, 85],
    # several connections in a second are one contact, and so is a duplicate
    ("h4", "bursts"): [5, 5.2, 25, 25, 45.999, 65, 85],
    # of another host: none of these with those of h1
    ("h5", "constant"): [15, 37],
    # 100 is on the edge: of the next window
    ("h6", "edge"): [62, 72, 82, 92, 100],
}
LAST = ("last", "last", 1_000.0)

EXPECTED = [
    # host, destination, window_start, contacts, interval_s, deviation, bytes: 10 of each connection
    ("h1", "constant", "2026-01-01T12:00:00Z", 5, 20.0, 0.0, 50),
    ("h2", "a third", "2026-01-01T12:00:00Z", 4, 20.333, 0.0328, 40),
    ("h2", "near", "2026-01-01T12:00:00Z", 5, 20.0, 0.1, 50),
    ("h3", "six", "2026-01-01T11:59:10Z", 4, 15.0, 0.0, 40),
    ("h3", "six", "2026-01-01T12:00:00Z", 6, 15.0, 0.0, 60),
    ("h4", "bursts", "2026-01-01T12:00:00Z", 5, 20.0, 0.0, 70),
    ("h6", "edge", "2026-01-01T12:00:00Z", 4, 10.0, 0.0, 40),
]

Alert = tuple[Any, ...]


def connect(test: AppTest, host: str, destination: str, time: float | str, size: int = 10) -> None:
    test.send("connections", {"destination": destination, "bytes": size}, key=host, time=time)


def alerts(batch: Batch) -> list[Alert]:
    return sorted(tuple(row.values()) for row in batch)


def found(spark: SparkSession, app: App, *cuts: int, **settings: Any) -> list[Alert]:
    """The alerts of CONTACTS, sorted. `cuts`: how many connections come before each restart."""
    sent = [(*pair, time) for pair, times in CONTACTS.items() for time in times]
    sent.append(LAST)
    rows: list[Alert] = []
    with AppTest(spark, app, **{**SMALL, **settings}) as test:
        for start, end in zip((0, *cuts), (*cuts, len(sent)), strict=True):
            for each in sent[start:end]:
                connect(test, *each)
            rows += alerts(test.run())
            test.restart()
    return sorted(rows)


@pytest.mark.usefixtures("compiled")
def test_golden(spark: SparkSession) -> None:
    assert found(spark, beaconing) == EXPECTED


def test_where_batches_end_makes_no_difference_also_with_a_restart(spark: SparkSession) -> None:
    # within the contacts of h1, before any of the first window is too late
    assert found(spark, beaconing, 2) == EXPECTED


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # 23 is off by 15 % of 20
        ({"jitter": 0.15}, sorted([*EXPECTED, ("h2", "not near", "2026-01-01T12:00:00Z", 5, 20.0, 0.15, 50)])),
        ({"jitter": 0.0328}, [row for row in EXPECTED if row[5] == 0.0 or row[1] == "a third"]),
        ({"threshold": 5}, [row for row in EXPECTED if row[3] >= 5]),
        ({"rarely": 4}, [row for row in EXPECTED if row[3] <= 4]),
        ({"window_s": 50}, [("h3", "six", "2026-01-01T12:00:00Z", 4, 15.0, 0.0, 40),
                            ("h6", "edge", "2026-01-01T12:00:50Z", 4, 10.0, 0.0, 40)]),
    ],
)  # fmt: skip
def test_settings_are_heeded(spark: SparkSession, settings: dict[str, Any], expected: list[Alert]) -> None:
    assert found(spark, beaconing, **settings) == expected


def test_an_alert_comes_once_and_only_when_the_watermark_has_passed_the_window(spark: SparkSession) -> None:
    alert = ("h", "d", "2026-01-01T12:00:00Z", 5, 20.0, 0.0, 50)
    with AppTest(spark, beaconing, **{**SMALL, "advance_s": 100}) as test:
        for second in (5, 25, 65, 85):
            connect(test, "h", "d", second)
        connect(test, "h", "else", 109.9)
        assert alerts(test.run()) == []
        test.restart()
        # 15 s before the newest connection, and in time
        connect(test, "h", "d", 45)
        assert alerts(test.run()) == []
        connect(test, "h", "else", 110)
        assert alerts(test.run()) == [alert]
        # one more contact changes nothing, as the window is over
        connect(test, "h", "d", 95)
        late = test.run()
        assert (late.rows, late.late) == ([], 1)


BAD: list[tuple[Any, Any, str]] = [
    ("h", "not json", "the value is not JSON: Expecting value at character 0"),
    ("h", {"destination": "d"}, "field bytes is missing"),
    ("h", {"bytes": 10}, "field destination is missing"),
    ("h", {"destination": "d", "bytes": "many"}, "field bytes is not bigint"),
    ("h", {"destination": "d", "bytes": 2**63}, "field bytes is not bigint"),
    (None, {"destination": "d", "bytes": 10}, "the key is null"),
    ("h", None, "the value is null"),
    ("h", b"\xff" * 2_000_000, "the value is not UTF-8"),
]


def test_a_bad_record_is_no_contact_and_the_alerts_go_on(spark: SparkSession) -> None:
    with AppTest(spark, beaconing, **SMALL) as test:
        for key, value, _ in BAD:
            test.send("connections", value, key=key, time=50)
        connect(test, "h", "d", "1996-01-01T00:00:00Z")
        # no sum is too large
        for second in (5, 25, 45, 65, 85):
            connect(test, "h", "d", second, 2**63 - 1)
        test.send("connections", {"destination": "x" * 2_000_000, "bytes": 1}, key="h", time=6)
        batch = test.run()
        assert batch.rows == []
        assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
        # a connection from the far future ends all windows
        connect(test, "h", "d", "2099-01-01T00:00:00Z")
        batch = test.run()
        assert alerts(batch) == [("h", "d", "2026-01-01T12:00:00Z", 5, 20.0, 0.0, 5 * (2**63 - 1))]
        # and all after it are late, each for two windows
        connect(test, "h", "d", 120)
        late = test.run()
        assert (late.rows, late.late) == ([], 2)


def test_one_interval_is_not_called_constant(spark: SparkSession) -> None:
    with AppTest(spark, beaconing, threshold=2) as test, pytest.raises(AppFailed, match="threshold must be 3 or more"):
        test.run()


def test_columns_and_definition(spark: SparkSession) -> None:
    with AppTest(spark, beaconing) as test:
        assert test.schema == {
            "host": "string",
            "destination": "string",
            "window_start": "string",
            "contacts": "int",
            "interval_s": "decimal(12,3)",
            "deviation": "decimal(9,4)",
            "bytes": "decimal(29,0)",
        }
    assert beaconing.name == "beaconing"
    assert beaconing.results[""].key == ("host",)
    assert beaconing.output_mode == "append"
    assert beaconing.watermark == "10 seconds"
    assert dict(beaconing.settings) == {
        "window_s": 600, "advance_s": 120, "threshold": 8, "rarely": 30, "jitter": 0.1,
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('groupBy("host", "destination"', 'groupBy(F.lit("h1").alias("host"), "destination"'),
        ('"destination", window.alias', 'F.lit("near").alias("destination"), window.alias'),
        ("between(settings.threshold, settings.rarely)", "between(settings.threshold + 1, settings.rarely)"),
        ("between(settings.threshold, settings.rarely)", "between(settings.threshold - 1, settings.rarely)"),
        ("between(settings.threshold, settings.rarely)", "between(settings.threshold, settings.rarely - 1)"),
        ("between(settings.threshold, settings.rarely)", "between(settings.threshold, settings.rarely + 1)"),
        (' & (F.col("off") <= jitter * F.col("span"))', ""),
        ('F.col("off") <= jitter', 'F.col("off") < jitter'),
        ("array_max(transform", "array_min(transform"),
        ("abs(i * (contacts - 1) - span)", "span - i * (contacts - 1)"),
        ('F.collect_set(F.unix_seconds("event_time"))', 'F.collect_list(F.unix_seconds("event_time"))'),
        ('F.unix_seconds("event_time")', '(F.unix_millis("event_time") / 1000)'),
        ("F.sort_array(seconds)", "seconds"),
        (', f"{settings.advance_s} seconds"', ""),
        ("{settings.window_s} seconds", "150 seconds"),
        ('/ (F.col("contacts") - 1)', '/ F.col("contacts")'),
        ('"window.start"', '"window.end"'),
        ('F.sum(F.col("bytes")', 'F.max(F.col("bytes")'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert found(spark, mutant(beaconing, there, instead)) != EXPECTED
