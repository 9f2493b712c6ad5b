"""Golden test of maintenance: signals in, devices and alerts out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.maintenance import maintenance
from pipelines.model import App
from pipelines.testing import AppFailed, AppTest, at
from tests.apps.lives import Life
from tests.apps.memory import Memory
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# windows of 10 minutes: a device is judged after 4 hours, not after a day
LIFE = Life(records=17_000, per_second=1, at_least=50, settings={"window_s": 600, "advance_s": 300})

# an "hour" of 60 s that ends every 20 s, and a "week" of four
SETTINGS: dict[str, Any] = {"window_s": 60, "advance_s": 20, "windows": 4, "least": 2, "sigmas": 1.0}
# device, signal, seconds after noon; in order of arrival
SIGNALS: list[tuple[str, str, float]] = [
    # heard in two steps, the later one first
    ("d3", "restart", 21),
    ("d3", "restart", 19),
    *sorted(
        [
            # four an hour, whenever it ends
            *[("d1", "restart", time) for time in range(0, 390, 15)],
            # then up to seven
            *[("d1", "force", time) for time in (301, 321, 341, 361)],
            # then none, then nine
            *[("d1", "dropped-packets", time) for time in range(460, 469)],
            # while it is learning, three are not many
            *[("d2", "restart", time) for time in (0, 100, 101, 102, 160, 161)],
        ],
        key=lambda each: each[2],
    ),
    # in two steps, again, and then nobody is heard for long
    ("d4", "restart", 621),
    ("d4", "restart", 619),
    # after a week of silence
    ("d1", "restart", 1000),
]
Told = tuple[Any, ...]
# when an hour ends -> device: pattern, signals, expected, lower, upper, restarts, dropped packets, forces
DEVICES: dict[int, dict[str, Told]] = {
    180: {
        "d1": ("within", 4, 4, 2, 6, 4, 0, 0),
        "d2": ("within", 2, 2, 0.586, 3.414, 2, 0, 0),  # 3 and 1 before
        "d3": ("within", 0, 1, 0, 2, 0, 0, 0),  # 0 and 2 before: it is at the limit
    },
    # d1: six at 340 were within; d2: 0, 0, 2, 3 before, the deviation is more than the root of the mean; d3: forgotten
    360: {"d1": ("above", 7, 4, 2, 6, 4, 0, 3), "d2": ("within", 0, 1.25, -0.049, 2.549, 0, 0, 0)},
    # 3, 7, 4, 4 before; d2: forgotten
    480: {"d1": ("above", 9, 4.5, 2.379, 6.621, 0, 9, 0)},
    # d1: forgotten; d4: 0, 0, 0, 2 before
    900: {"d4": ("within", 0, 0.5, -0.366, 1.366, 0, 0, 0)},
    1020: {"d1": ("learning", 1, None, None, None, 1, 0, 0)},
}
ALERTS: list[Told] = [
    ("d1", 360, "above", 7, 4, 2, 6, 4, 0, 3),
    # still above at 380, then within, then none of 7, 5, 4, 4
    ("d1", 440, "below", 0, 5, 2.764, 7.236, 0, 0, 0),
    ("d1", 480, "above", 9, 4.5, 2.379, 6.621, 0, 9, 0),  # from one side to the other
    ("d1", 540, "below", 0, 5.75, 3.352, 8.148, 0, 0, 0),  # 9, 3, 7, 4 before
    ("d2", 240, "below", 0, 2, 0.586, 3.414, 0, 0, 0),  # 2, 3, 1 before
]
FIELDS = ("pattern", "signals", "expected", "lower", "upper", "restarts", "dropped_packets", "forces")
BAD: list[tuple[Any, Any, str]] = [
    ("d1", "not json", "the value is not JSON: Expecting value at character 0"),
    ("d1", {"kind": "restart"}, "field signal is missing"),
    (None, {"signal": "restart"}, "the key is null"),
    ("d1", None, "the value is null"),
    ("d1", b"\xff" * 2_000_000, "the value is not UTF-8"),
    ("d1", '"restart"', "the value is a string, not a JSON object"),
    ("d1", "[1]", "the value is an array, not a JSON object"),
    ("d1", {"signal": None}, "field signal is missing"),
    (b"\xff", {"signal": "restart"}, "the key is not UTF-8"),
]


def between(start: float, end: float) -> list[tuple[str, str, float]]:
    """Those after `start`, up to `end`: what comes at the watermark is late."""
    return [each for each in SIGNALS if start < each[2] <= end]


@pytest.mark.spark
@pytest.mark.usefixtures("frames_of_two")
def test_golden_and_what_is_bad_or_late_is_told(spark: SparkSession) -> None:
    with AppTest(spark, maintenance, **SETTINGS) as test:
        alerts, start = [], -1
        for end in (360, 1020):
            test.restart()
            for device, signal, time in between(start, end):
                test.send("signals", {"signal": signal}, key=device, time=time)
            if start < 0:
                for key, value, _ in BAD:
                    test.send("signals", value, key=key)
                # another signal, one of another type, which is read as its text, and one of 2 MB
                test.send("signals", {"signal": "hiccup"}, key="d1", time=350)
                for other in (5, True, {"restart": 1}, ["restart"]):
                    test.send("signals", {"signal": other}, key="d1", time=350)
                test.send("signals", {"signal": "x" * 2_000_000}, key="d1", time=350)
                test.send("signals", {"signal": "restart"}, key="old", time="1996-01-01T00:00:00Z")
            batch = test.run()
            if start < 0:
                assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
            rows = [*batch["alerts"], *test.advance_watermark(end)["alerts"]]
            alerts += [(row["device"], seconds(row["at"]), *(row[name] for name in FIELDS)) for row in rows]
            devices = {device: tuple(row[name] for name in FIELDS) for (device,), row in test.tables["devices"].items()}
            assert devices == DEVICES[end]
            assert {seconds(row["at"]) for row in test.tables["devices"].values()} == {end}
            start = end
        assert sorted(alerts) == ALERTS
        test.send("signals", {"signal": "restart"}, key="d1", time=1020)
        # all that was known is older than a week
        test.send("signals", {"signal": "restart"}, key="d1", time="2099-01-01T00:00:00Z")
        assert test.run().late == 1
        assert test.tables["devices"] == {}


@pytest.mark.spark
def test_a_signal_that_comes_twice_counts_twice(spark: SparkSession) -> None:
    with AppTest(spark, maintenance, **SETTINGS) as test:
        for _ in range(2):
            for _ in range(2):
                test.send("signals", {"signal": "restart"}, key="d1", time=5)
            test.run()
        test.advance_watermark(20)
        assert {device: (row["signals"], row["restarts"]) for (device,), row in test.tables["devices"].items()} == {
            "d1": (4, 4)
        }


@pytest.mark.spark
def test_a_time_that_pandas_does_not_have_is_a_time(spark: SparkSession) -> None:
    with AppTest(spark, maintenance, **SETTINGS) as test:
        for device, time in (("d1", 0), ("d2", "2999-01-01T00:00:00Z"), ("d3", "9999-12-31T00:00:00Z")):
            test.send("signals", {"signal": "restart"}, key=device, time=time)
        batch = test.run()
        assert batch.dead_letters == []
        # d1 and d2 are forgotten by then, and d3's first hour is not over
        assert test.tables["devices"] == {}
        test.send("signals", {"signal": "restart"}, key="d1", time=30)
        test.send("signals", {"signal": "restart"}, key="d3", time="9999-12-31T00:00:40Z")
        assert test.run().late == 1
        assert {device: (row["at"], row["signals"]) for (device,), row in test.tables["devices"].items()} == {
            "d3": ("9999-12-31T00:00:20Z", 1)
        }


def seconds(text: str) -> int:
    """After noon."""
    return round(at(text).timestamp() - at(0).timestamp())


@pytest.mark.spark
@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"advance_s": 7}, "window_s must be a multiple of advance_s"),
        ({"window_s": 0}, "window_s must be a multiple of advance_s, and both 1 or more"),
        ({"least": 0}, "least must be 1 to windows"),
        ({"least": 200}, "least must be 1 to windows"),
        ({"sigmas": 0.0}, "sigmas more than 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(spark: SparkSession, settings: dict[str, Any], what: str) -> None:
    with AppTest(spark, maintenance, **settings) as test, pytest.raises(AppFailed, match=what):
        test.run()


def judged(app: App, size: int, ends: tuple[int, ...]) -> tuple[dict[int, dict[str, Told]], list[Told]]:
    """The devices at each of `ends` and the alerts, as the app's own processor tells them of batches of `size`."""
    code = app.function.__globals__
    rule = code["Rule"](step_ms=20_000, window=3, windows=4, least=2, sigmas=1.0)
    memory, noon = Memory(lambda: code["Device"](rule), "device"), round(at(0).timestamp() * 1000)
    table: dict[str, Told] = {}
    found, alerts, start, newest = {}, [], -1, 0.0
    for end in ends:
        signals = between(start, end)
        told = []
        for first in range(0, len(signals), size):
            rows = [
                {"device": device, "step": round(noon + time * 1000) // 20_000, "signal": signal}
                for device, signal, time in signals[first : first + size]
            ]
            newest = max([newest, *(time for *_, time in signals[first : first + size])])
            told += memory.run(rows, noon + round(newest - 10) * 1000)
        for row in [*told, *memory.run([], noon + end * 1000)]:
            values = tuple(plain(row[name]) for name in FIELDS)
            if row["alert"]:
                alerts.append((row["device"], (row["at"] - noon) // 1000, *values))
            elif values == (None,) * len(FIELDS):
                table.pop(row["device"], None)
            else:
                table[row["device"]] = values
        found[end], start = dict(table), end
    return found, sorted(alerts)


def plain(value: Any) -> Any:
    return None if value is None or value != value else round(value, 3) if isinstance(value, float) else value


@pytest.mark.parametrize("size", [1, 3, 20, len(SIGNALS)])
@pytest.mark.parametrize("ends", [(180, 360, 480, 900, 1020), (480, 1020), (1020,)])
def test_batches_make_no_difference(size: int, ends: tuple[int, ...]) -> None:
    assert judged(maintenance, size, ends) == ({end: DEVICES[end] for end in ends}, ALERTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("(end - first) // self.window - 1", "(end - first) // self.window"),
        ("- 1, self.windows)", "- 1, self.windows - 1)"),
        ("(end - 1 - step) // self.window", "(end - step) // self.window"),
        ("elif 0 < age <= known", "elif 0 < age < known"),
        ("elif 0 < age <= known", "if 0 <= age <= known"),
        ("known < self.least", "known < 1"),
        ("max((known * squares - total * total) / known**2, expected)", "expected"),
        (", expected))", ", 0))"),
        ("signals > upper", "signals >= upper"),
        ("signals < lower", "signals <= lower"),
        ("expected - self.sigmas * deviation,", "expected - 2 * deviation,"),
        ("expected + self.sigmas * deviation", "expected + 2 * deviation"),
        ("SIGNALS.index(signal)", "0"),
        (" or earliest < first", ""),
        ("earliest, earliest + 1", "earliest, earliest + 2"),
        ("due <= over", "due < over"),
        ("if step >= due - rule.kept", ""),
        ("self.window * (self.windows + 1)", "self.window * self.windows"),
        ("self.window * (self.windows + 1)", "self.window * (self.windows + 2)"),
        ("or min(steps) >= due", ""),
        ('"learning", nothing', '"learning", None'),
        (" and pattern != before", ""),
        ('in ("above", "below")', '== "above"'),
        ("            self._device.clear()", "            pass"),
        ("if found is not None:", "if True:"),
    ],
)
def test_a_fault_in_any_clause_is_seen(there: str, instead: str) -> None:
    changed = mutant(maintenance, there, instead)
    seen = False
    for size, ends in ((1, tuple(DEVICES)), (len(SIGNALS), (480, 1020))):
        try:
            seen |= judged(changed, size, ends) != ({end: DEVICES[end] for end in ends}, ALERTS)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            seen = True
    assert seen
