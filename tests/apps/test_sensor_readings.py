"""Golden test of sensor-readings: readings in, hours and late readings out, all written by hand."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.sensor_readings import sensor_readings
from pipelines.model import App
from pipelines.testing import AppFailed, AppTest, at
from tests.apps.lives import Life
from tests.apps.memory import Memory
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIFE = Life(records=4_000, per_second=50, at_least=100)

HOUR, DAY = 3600, 86_400
# device, seconds after noon, value; offsets as they stand here
READINGS: list[tuple[str, float, float]] = [
    ("d1", 0, 10),
    ("d1", 1800, 20),
    ("d1", 3 * HOUR, 5),
    ("d1", 0, 3),  # exactly three hours late
    ("d1", -0.001, 4),  # a millisecond more
    ("d1", 4 * HOUR, 7),
    ("d1", 1 * HOUR, 8),  # exactly three hours late, and the first of its hour
    ("d1", 1 * HOUR - 0.001, 9),
    ("d2", -21 * DAY, 2),  # three weeks older than all others, but the newest of its device
    ("d2", 0, 6),  # back after three weeks
    ("d2", -21 * DAY, 1),  # three weeks late
    ("d2", -1800, 6.5),
    ("d2", -1800, 6.5),  # twice: both count
]
HOURS = {
    # device, hour -> lowest, highest, average, readings
    ("d1", "2026-01-01T12:00:00Z"): (3, 20, 11, 3),
    ("d1", "2026-01-01T13:00:00Z"): (8, 8, 8, 1),
    ("d1", "2026-01-01T15:00:00Z"): (5, 5, 5, 1),
    ("d1", "2026-01-01T16:00:00Z"): (7, 7, 7, 1),
    ("d2", "2025-12-11T12:00:00Z"): (2, 2, 2, 1),
    ("d2", "2026-01-01T11:00:00Z"): (6.5, 6.5, 6.5, 2),
    ("d2", "2026-01-01T12:00:00Z"): (6, 6, 6, 1),
}
LATE = [
    # device, time, value, how late in ms, offset
    ("d1", "2026-01-01T11:59:59.999Z", 4, 3 * HOUR * 1000 + 1, 4),
    ("d1", "2026-01-01T12:59:59.999Z", 9, 3 * HOUR * 1000 + 1, 7),
    ("d2", "2025-12-11T12:00:00.000Z", 1, 21 * DAY * 1000, 10),
]
# of each device, the hours after the newest reading's three hours and those that they touch
OPEN = {"d1": [13, 15, 16], "d2": [11, 12]}
BAD: list[tuple[Any, Any, str]] = [
    ("d1", "not json", "the value is not JSON: Expecting value at character 0"),
    ("d1", {"temperature": 1}, "field value is missing"),
    ("d1", {"value": "warm"}, "field value is not double"),
    ("d1", b'{"value":1e999}', "field value is too large a number"),
    (None, {"value": 1}, "the key is null"),
    ("d1", None, "the value is null"),
    ("d1", b"\xff" * 2_000_000, "the value is not UTF-8"),
]


@pytest.mark.spark
@pytest.mark.usefixtures("frames_of_two")
def test_golden_and_what_is_bad_is_a_dead_letter(spark: SparkSession) -> None:
    with AppTest(spark, sensor_readings) as test:
        late = []
        for readings in (READINGS[:3], READINGS[3:]):
            test.restart()
            for device, time, value in readings:
                test.send("readings", {"value": value}, key=device, time=time)
            if readings[0] == READINGS[3]:
                for key, bad, _ in BAD:
                    test.send("readings", bad, key=key)
                test.send("readings", {"value": 1, "note": "x" * 2_000_000}, key="d3", time="1996-01-01T00:00:00Z")
                test.send("readings", {"value": 2}, key="d3", time="2099-01-01T00:00:00Z")
            batch = test.run()
            late += [
                (row["device"], row["at"], row["value"], row["late_ms"], int(source.split(":")[2]))
                for row, name, source in zip(batch.rows, batch.names, batch.sources, strict=True)
                if name == "late" and source is not None
            ]
        assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
        assert batch.late == 0 and batch.watermark is None
        found = {key: tuple(row.values()) for key, row in test.tables["hours"].items()}
        # of another device, what comes after 2099 is not late
        odd = {("d3", "1996-01-01T00:00:00Z"): (1, 1, 1, 1), ("d3", "2099-01-01T00:00:00Z"): (2, 2, 2, 1)}
        assert found == HOURS | odd
        assert sorted(late) == LATE


@pytest.mark.spark
def test_less_than_no_grace_is_refused(spark: SparkSession) -> None:
    with (
        AppTest(spark, sensor_readings, grace_s=-1) as test,
        pytest.raises(AppFailed, match="grace_s must be 0 or more"),
    ):
        test.run()


LARGEST = sys.float_info.max
NEXT = math.nextafter(LARGEST, 0)
# the readings of a device -> their average
AVERAGES: dict[str, tuple[list[float], float]] = {
    "usual": ([0.1, 0.1, 0.1], 0.10000000000000002),
    "tiny": ([5e-324, 1.5e-323], 1e-323),
    "small and huge": ([1e300, 1.0, 1e300], 6.666666666666667e299),
    "two": ([1.7e308, 1.7e308], 1.7e308),
    "below zero": ([-(2.0**1023), -1.5 * 2.0**1023], -1.25 * 2.0**1023),
    "away": ([1.7e308, 6.0, -1.7e308], 2.0),
    "largest": ([LARGEST, LARGEST, LARGEST], LARGEST),
    # a sum of six of these is rounded up
    "next": (6 * [NEXT], NEXT),
}


@pytest.mark.spark
def test_no_reading_is_so_large_that_the_average_is_infinite(spark: SparkSession) -> None:
    with AppTest(spark, sensor_readings) as test:
        for half in (0, 1):
            for device, (values, _) in AVERAGES.items():
                for value in values[half::2]:
                    test.send("readings", {"value": value}, key=device)
            test.run()
        found = {device: row for (device, _), row in test.tables["hours"].items()}
    assert {device: row["average"] for device, row in found.items()} == {d: it for d, (_, it) in AVERAGES.items()}
    assert {device: row["readings"] for device, row in found.items()} == {
        d: len(each) for d, (each, _) in AVERAGES.items()
    }


def taken(app: App, size: int) -> tuple[Any, ...]:
    """What the app's own processor makes of `READINGS` in batches of `size`: the hours, the late ones, the hours it keeps."""
    memory = Memory(lambda: app.function.__globals__["Readings"](3 * HOUR * 1000), "device")
    rows = [
        {"device": d, "at": ms(time), "value": float(v), "topic": "readings", "partition": 0, "offset": offset}
        for offset, (d, time, v) in enumerate(READINGS)
    ]
    hours, late = {}, []
    for start in range(0, len(rows), size):
        for row in memory.run(rows[start : start + size]):
            if row["late_ms"] is None:
                average = row["total"] / row["readings"]
                hours[row["device"], row["at"]] = (row["lowest"], row["highest"], average, row["readings"])
            else:
                late.append(tuple(row[name] for name in ("device", "at", "value", "late_ms", "offset")))
    kept = {
        device: [hour % (DAY * 1000) for hour, *_ in state["device"].value[1]]
        for device, state in memory.states.items()
    }
    return hours, sorted(late), {device: sorted(each) for device, each in kept.items()}


def ms(time: float | str) -> int:
    """A time as the processor has it."""
    return round(at(time).timestamp() * 1000)


EXPECTED = (
    {(device, ms(hour)): row for (device, hour), row in HOURS.items()},
    [(device, ms(time), *rest) for device, time, *rest in LATE],
    {device: [hour * HOUR * 1000 for hour in hours] for device, hours in OPEN.items()},
)


@pytest.mark.parametrize("size", [1, 2, 5, len(READINGS)])
def test_batches_make_no_difference_and_only_hours_that_may_change_are_kept(size: int) -> None:
    assert taken(sensor_readings, size) == EXPECTED


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("newest - at > self._grace_ms", "newest - at >= self._grace_ms"),
        ("max(newest, at)", "at"),
        ("in sorted(batch, key=itemgetter(4, 5))", "in batch"),
        ("late.append((", "id(("),
        ("                continue", "                pass"),
        ("at // HOUR_MS * HOUR_MS", "at // 1_800_000 * 1_800_000"),
        ("for hour, *row in known", "for hour, *row in []"),
        ("min(lowest, value)", "lowest"),
        ("max(highest, value)", "highest"),
        ("total += value", "total = value"),
        ("readings + 1", "1"),
        ("self._grace_ms - HOUR_MS", "self._grace_ms"),
        ("if hour > open_from", "if hour >= open_from"),
        ("if hour > open_from", ""),
    ],
)
def test_a_fault_in_any_clause_is_seen(there: str, instead: str) -> None:
    changed = mutant(sensor_readings, there, instead)
    assert any(taken(changed, size) != EXPECTED for size in (1, len(READINGS)))


def sums(app: App) -> tuple[float, float]:
    """What the app's own processor adds up of an hour with huge readings: the usual ones, and the huge ones divided."""
    memory = Memory(lambda: app.function.__globals__["Readings"](3 * HOUR * 1000), "device")
    for offset, value in enumerate((2.0**1023, 3.0, -(2.0**1022))):
        reading = {"device": "d", "at": 0, "value": value, "topic": "readings", "partition": 0, "offset": offset}
        [row] = memory.run([reading])
    return row["total"], row["huge"]


@pytest.mark.parametrize(
    ("there", "instead"), [("huge += value / SCALE", "huge = value / SCALE"), ("abs(value) < HUGE", "value < HUGE")]
)
def test_a_fault_with_huge_readings_is_seen(there: str, instead: str) -> None:
    assert sums(sensor_readings) == (3.0, 2.0**958)
    assert sums(mutant(sensor_readings, there, instead)) != (3.0, 2.0**958)
