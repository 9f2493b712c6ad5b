"""notification-counts: how often each user was told, in sliding windows, from the result of not-viewing."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Json, ResultOf, Stream, Table, app


@app(
    name="notification-counts",
    inputs={
        "told": Stream(
            topic=ResultOf("not-viewing"),
            key=Json("user string NOT NULL"),
            value=Json("at timestamp NOT NULL"),
            time="at",
        )
    },
    result=Table(key=("user", "window_start"), partitions=4),
    suite="notification_counts",
    shows="multi-phase",
    oversized="dead-letter",
    watermark="10 minutes",
    settings={"window_s": 600, "advance_s": 60},
)
def notification_counts(told: DataFrame, settings: AppSettings) -> DataFrame:
    """The number of notifications of each user in windows of `window_s`, advancing by `advance_s`.

    Result: user, window_start (UTC, `2013-03-01T14:30:00Z`), notifications. The time of a notification is that of its
    tick. A notification that is more than 10 minutes older than the newest is ignored, and counted as late.

    It reads the result of `not-viewing`: the release that was live when it was staged.
    """
    window = F.window("event_time", f"{settings.window_s} seconds", f"{settings.advance_s} seconds")
    counted = told.groupBy("user", window.alias("window")).agg(F.count(F.lit(1)).alias("notifications"))
    start = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("window_start")
    return counted.select("user", start, "notifications")
