"""maintenance: devices that signal more or less often than they did in the week before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from pipelines.model import AppendStream, AppSettings, Json, Stream, Table, app, time_us

if TYPE_CHECKING:
    import pandas as pd

SIGNALS = ("restart", "dropped-packets", "force")
# how often a device gave each of SIGNALS, by step
Steps = dict[int, list[int]]
# `alert`: whether the row is an alert or the device as it is now
COLUMNS = (
    "device string, at bigint, pattern string, signals bigint, expected double, lower double, upper double, "
    "restarts bigint, dropped_packets bigint, forces bigint, alert boolean"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When an hour leaves the pattern. Time is in steps: step n starts n * `step_ms` after 1970. `window`: steps of an hour;
    `windows`: hours of a week; `least`: how many of them must be known.
    """

    step_ms: int
    window: int
    windows: int
    least: int
    sigmas: float

    def judged(self, steps: Steps, first: int, end: int) -> tuple[Any, ...]:
        """The judgment of the hour before `end`: pattern, signals, expected, lower, upper, and how often each signal
        came. `first`: the step of the device's first signal.
        """
        # hours are counted back from `end`; the first one is what is judged
        known = min((end - first) // self.window - 1, self.windows)
        each, hours = [0] * len(SIGNALS), [0] * (max(known, 0) + 1)
        for step, counts in steps.items():
            age = (end - 1 - step) // self.window
            if age == 0:
                each = [sum(pair) for pair in zip(each, counts, strict=True)]
            elif 0 < age <= known:
                hours[age] += sum(counts)
        signals = sum(each)
        if known < self.least:
            return "learning", signals, None, None, None, *each
        total, squares = sum(hours), sum(count * count for count in hours)
        expected = total / known
        # by chance alone, counts deviate by the root of their mean
        deviation = math.sqrt(max((known * squares - total * total) / known**2, expected))
        lower, upper = expected - self.sigmas * deviation, expected + self.sigmas * deviation
        pattern = "above" if signals > upper else "below" if signals < lower else "within"
        return pattern, signals, expected, lower, upper, *each

    @property
    def kept(self) -> int:
        """How many steps before its end an hour depends on."""
        return self.window * (self.windows + 1)


class Device(StatefulProcessor):
    """The state of a device: since when it is known, the end of the next hour to judge, and its signals by step."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        # one list, as each hour that is judged reads the week; not a map: in Spark's state, its keys could only be text
        self._device = handle.getValueState(
            "device", "first bigint, due bigint, pattern string, steps array<struct<step bigint, counts array<bigint>>>"
        )

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        first, due, pattern, steps = self._known()
        for frame in rows:
            for step, signal in zip(frame["step"].tolist(), frame["signal"].tolist(), strict=True):
                steps.setdefault(step, [0] * len(SIGNALS))[SIGNALS.index(signal)] += 1
        earliest = min(steps)
        if first is None or earliest < first:
            first, due = earliest, earliest + 1
            self._handle.registerTimer(due * self._rule.step_ms)
        self._device.update((first, due, pattern, list(steps.items())))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        # here, as Dagster imports all apps, and pandas takes long; Python workers have it loaded
        import pandas as pd

        names = [column.split()[0] for column in COLUMNS.split(", ")]
        rule, nothing = self._rule, (None,) * (len(names) - 2)
        alerts: list[tuple[Any, ...]] = []
        found: tuple[Any, ...] | None = None
        first, due, pattern, steps = self._known()
        # one timer for all hours that are over: a device that was silent for long would need thousands
        over = timerValues.getCurrentWatermarkInMs() // rule.step_ms
        while steps and due <= over:
            steps = {step: counts for step, counts in steps.items() if step >= due - rule.kept}
            if not steps or min(steps) >= due:
                # silent for a week: forgotten, and new when it is heard again; its row is deleted
                first, pattern, found = min(steps, default=0), "learning", nothing
                due = first + 1
                continue
            before, found = pattern, (due * rule.step_ms, *rule.judged(steps, first, due))
            pattern = found[1]
            if pattern in ("above", "below") and pattern != before:
                alerts.append((*key, *found, True))
            due += 1
        if steps:
            self._device.update((first, due, pattern, list(steps.items())))
            self._handle.registerTimer(due * rule.step_ms)
        else:
            self._device.clear()
        if found is not None:
            # objects: pandas would make floats of whole numbers in a column with nulls
            yield pd.DataFrame([*alerts, (*key, *found, False)], columns=names, dtype=object)

    def _known(self) -> tuple[Any, Any, str, Steps]:
        first, due, pattern, steps = self._device.get() or (None, None, "learning", [])
        return first, due, pattern, {step: list(counts) for step, counts in steps}

    def close(self) -> None:
        """Nothing is open."""


@app(
    name="maintenance",
    inputs={"signals": Stream(topic="device-signals", key="device string", value=Json("signal string NOT NULL"))},
    results={
        "devices": Table(key=("device",), partitions=4, suite="maintenance_devices"),
        "alerts": AppendStream(key=("device",), partitions=4, suite="maintenance_alerts"),
    },
    shows="window",
    oversized="dead-letter",
    watermark="10 seconds",
    settings={"window_s": 3600, "advance_s": 600, "windows": 168, "least": 24, "sigmas": 3.0},
)
def maintenance(signals: DataFrame, settings: AppSettings) -> DataFrame:
    """Devices that had more, or fewer, signals in the last hour than expected from their own last week.

    Results:

    - `devices` by device, as of its last hour: at (the hour's end in UTC, `2013-03-01T14:30:00Z`), pattern (`within`,
      `above`, `below`, or `learning`), signals, expected, lower, upper, restarts, dropped_packets, forces.
    - `alerts` by device, when its hour leaves the pattern: the same columns, with the pattern `above` or `below`. The
      next alert comes when the device leaves the pattern again, or leaves it on the other side.

    An hour is `window_s` long, and one ends every `advance_s`. It is judged by a control chart (Shewhart's; see 6.3 in
    the NIST/SEMATECH e-Handbook of Statistical Methods). The `windows` hours before it, a week, have a mean and a standard
    deviation. The mean is what is `expected`. The limits are `sigmas` deviations below and above it; an hour within them, or
    at one, is within the pattern. A deviation counts as at least the root of the mean: that much is chance in counts, as in a
    chart of counts. As long as fewer than `least` hours before it are known, the device is `learning`.

    Signals are restarts, dropped packets and force (`restart`, `dropped-packets`, `force`); others are not counted. An
    hour is judged when the watermark has passed its end. A signal that is more than 10 s late is dropped. A silent
    device is also judged, as long as others signal. After a week of silence it is forgotten, and its row is deleted.

    State: for each device, how often each signal came in each `advance_s` of its week. It is Python, because Spark
    can't compare a window with those before it: one call for each device of a batch, and one for each device when hours
    end.
    """
    if settings.advance_s < 1 or settings.window_s % settings.advance_s or settings.window_s < 1:
        raise ValueError("window_s must be a multiple of advance_s, and both 1 or more")
    if not 1 <= settings.least <= settings.windows or settings.sigmas <= 0:
        raise ValueError("least must be 1 to windows, and sigmas more than 0")
    rule = Rule(
        step_ms=settings.advance_s * 1000,
        window=settings.window_s // settings.advance_s,
        windows=settings.windows,
        least=settings.least,
        sigmas=settings.sigmas,
    )
    step = F.floor(F.unix_millis("event_time") / rule.step_ms).alias("step")
    # Spark drops late signals by the time
    placed = signals.where(F.col("signal").isin(*SIGNALS)).select("device", time_us(signals), step, "signal")
    found = placed.groupBy("device").transformWithStateInPandas(Device(rule), COLUMNS, "update", "eventTime")
    at = F.date_format(F.timestamp_millis("at"), "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("at")
    limits = [F.col(name).cast("decimal(18,3)").alias(name) for name in ("expected", "lower", "upper")]
    row = F.struct("device", at, "pattern", "signals", *limits, "restarts", "dropped_packets", "forces")
    return found.select(F.when(~F.col("alert"), row).alias("devices"), F.when(F.col("alert"), row).alias("alerts"))
