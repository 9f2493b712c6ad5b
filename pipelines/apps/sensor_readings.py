"""sensor-readings: what each device measured hour by hour, though devices go offline and deliver later."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from pipelines.model import AppendStream, AppSettings, Json, Stream, Table, app

if TYPE_CHECKING:
    import pandas as pd

HOUR_MS = 3_600_000
_SOURCE = ("topic", "partition", "offset")
_OF_AN_HOUR = "lowest double, highest double, total double, huge double, readings bigint"
# a reading of that much or more is added up apart, divided by `SCALE`: then no sum of 2^63 readings is infinite. Both
# are powers of two, so that dividing by them loses no digit
HUGE, SCALE = 2.0**960, 2.0**64
# a row is of an hour, `at` being its start, or a late reading; the columns of the other are null
COLUMNS = (
    f"device string, at bigint, {_OF_AN_HOUR}, value double, late_ms bigint, topic string, partition int, offset bigint"
)


class Readings(StatefulProcessor):
    """The state of a device: the time of its newest reading, and the hours that a reading may still change."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        # not a map: in Spark's state, its keys could only be text
        self._device = handle.getValueState("device", f"newest bigint, hours array<struct<hour bigint, {_OF_AN_HOUR}>>")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        # here, as Dagster imports all apps, and pandas takes long; Python workers have it loaded
        import pandas as pd

        newest, known = self._device.get() or (None, [])
        hours = {hour: row for hour, *row in known}
        changed, late = set(), []
        # Spark gives the readings of a batch in any order, and a large batch in several frames
        batch = (row for frame in rows for row in frame.to_numpy().tolist())
        for _, at, value, topic, partition, offset in sorted(batch, key=itemgetter(4, 5)):
            newest = at if newest is None else max(newest, at)
            if newest - at > self._grace_ms:
                late.append((*key, at, None, None, None, None, None, value, newest - at, topic, partition, offset))
                continue
            hour = at // HOUR_MS * HOUR_MS
            lowest, highest, total, huge, readings = hours.get(hour, (value, value, 0.0, 0.0, 0))
            if abs(value) < HUGE:
                total += value
            else:
                huge += value / SCALE
            hours[hour] = (min(lowest, value), max(highest, value), total, huge, readings + 1)
            changed.add(hour)
        open_from = newest - self._grace_ms - HOUR_MS
        self._device.update((newest, [(hour, *row) for hour, row in hours.items() if hour > open_from]))
        told = [(*key, hour, *hours[hour], None, None, None, None, None) for hour in sorted(changed)]
        # objects: pandas would make floats of whole numbers in a column with nulls
        yield pd.DataFrame(told + late, columns=[column.split()[0] for column in COLUMNS.split(", ")], dtype=object)

    def close(self) -> None:
        """Nothing is open."""


def _average() -> Column:
    """The average of an hour's readings. It is finite, as they are."""
    usual, huge = (F.col(name) / F.col("readings") for name in ("total", "huge"))
    # the largest double, rounded up, would be infinite
    within = F.greatest("lowest", F.least("highest", huge * SCALE + usual))
    return F.when(F.col("huge") == 0, usual).otherwise(within)


@app(
    name="sensor-readings",
    inputs={"readings": Stream(topic="readings", key="device string", value=Json("value double NOT NULL"))},
    results={
        "hours": Table(key=("device", "hour"), partitions=4, suite="sensor_readings_hours"),
        "late": AppendStream(key=("device",), partitions=4, suite="sensor_readings_late"),
    },
    shows="late data",
    oversized="dead-letter",
    settings={"grace_s": 10_800},
)
def sensor_readings(readings: DataFrame, settings: AppSettings) -> DataFrame:
    """Per device and hour: the lowest, highest and average reading. Readings that come too late go to a result of their
    own.

    Results:

    - `hours` by device, hour (its start in UTC, `2013-03-01T14:00:00Z`): lowest, highest, average, readings.
    - `late` by device: at (UTC, `2013-03-01T14:30:01.250Z`), value, late_ms, and topic, partition and offset of the
      reading.

    A reading is late by the time that it is older than the newest reading that the same device has sent before. A
    reading that is up to `grace_s` late (3 hours) changes its hour, whose row is written again. A later one changes no
    hour; it goes to `late`, no matter how late it is. So each reading is in exactly one of the results; a reading that
    comes twice counts twice.

    Each device has a clock of its own: a device that was offline for weeks does not depend on the others, and there is
    no watermark. A device whose clock is fast makes only its own readings late. Batches make no difference, because
    readings are taken in the order of their offsets. For that, the producer must put all readings of a device into one
    partition.

    An average is rounded as a sum of doubles is, but it is never infinite, however large the readings are.

    State: for each device, the newest time and the four hours that may still change. It is Python, because Spark has no
    watermark per key: one call for each device of a batch.
    """
    if settings.grace_s < 0:
        raise ValueError("grace_s must be 0 or more")
    placed = readings.select("device", F.unix_millis("event_time").alias("at"), "value", *_SOURCE)
    found = placed.groupBy("device").transformWithStateInPandas(
        Readings(settings.grace_s * 1000), COLUMNS, "update", "none"
    )
    time, is_late = F.timestamp_millis("at"), F.col("late_ms").isNotNull()
    hour = F.date_format(time, "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("hour")
    average = _average().alias("average")
    at = F.date_format(time, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'").alias("at")
    return found.select(
        F.when(~is_late, F.struct("device", hour, "lowest", "highest", average, "readings")).alias("hours"),
        F.when(is_late, F.struct("device", at, "value", "late_ms", *_SOURCE)).alias("late"),
    )
