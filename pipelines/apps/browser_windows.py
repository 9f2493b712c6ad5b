"""browser-windows: how often each browser acted, in sliding windows of event time or of the wall clock."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Comparable, Json, Stream, Table, app


def _comparable(settings: AppSettings) -> Comparable:
    # a replay meets another wall clock
    return "no" if settings.clock == "wall" else "exact"


@app(
    name="browser-windows",
    inputs={
        "actions": Stream(topic="browser-actions", key="browser_hash string", value=Json("action string NOT NULL"))
    },
    result=Table(key=("browser_hash", "window_start"), partitions=4),
    suite="browser_windows",
    shows="window",
    oversized="dead-letter",
    watermark="10 seconds",
    settings={"window_s": 5, "advance_s": 2, "clock": "event"},
    comparable=_comparable,
)
def browser_windows(actions: DataFrame, settings: AppSettings) -> DataFrame:
    """Per browser and window of `window_s`, advancing by `advance_s`: how many actions it made.

    Result: browser_hash, window_start (UTC, `2013-03-01T14:30:00Z`), actions. `clock` says which time the windows use.

    `event`: the time of the record. Records that are more than 10 s late are dropped. A replay gives the same windows.

    `wall`: the time at which Spark starts the batch, as if the browser acted then. No record is late. But a replay
    gives different windows: it puts years of history into the few windows in which it is read. A browser that acts once
    in ten minutes then looks like a program. So runs can't be compared: a diff shows the clock, not the code. A reset
    that keeps the state counts again the records that it reads again. And because no window ever ends, the state grows
    for as long as the release runs.
    """
    times = {"event": F.col("event_time"), "wall": F.current_timestamp()}
    if settings.clock not in times:
        raise ValueError(f"clock must be {' or '.join(times)}, not {settings.clock}")
    window = F.window("time", f"{settings.window_s} seconds", f"{settings.advance_s} seconds")
    timed = actions.withColumn("time", times[settings.clock])
    counts = timed.groupBy("browser_hash", window.alias("window")).agg(F.count(F.lit(1)).alias("actions"))
    start = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("window_start")
    return counts.select("browser_hash", start, "actions")
