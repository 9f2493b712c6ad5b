"""beaconing: hosts that contact a destination as regularly as only a program does."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Json, Stream, app

_INTERVALS = "zip_with(slice(times, 2, size(times)), slice(times, 1, size(times) - 1), (next, last) -> next - last)"


@app(
    name="beaconing",
    inputs={
        "connections": Stream(
            topic="connections", key="host string", value=Json("destination string NOT NULL, bytes bigint NOT NULL")
        )
    },
    result=AppendStream(key=("host",), partitions=4),
    suite="beaconing",
    shows="window",
    oversized="dead-letter",
    watermark="10 seconds",
    settings={"window_s": 600, "advance_s": 120, "threshold": 8, "rarely": 30, "jitter": 0.1},
)
def beaconing(connections: DataFrame, settings: AppSettings) -> DataFrame:
    """Hosts that contact a destination, to which they rarely talk, at a near-constant interval.

    Result: host, destination, window_start (UTC, `2013-03-01T14:30:00Z`), contacts, interval_s (their mean interval),
    deviation (of the interval that is farthest from the mean, as a share of the mean), bytes (sum over the window).

    An alert covers one window of `window_s` that advances by `advance_s`: a beacon that lasts gets an alert for each
    window. A contact is a second with connections, so that a burst or a duplicate is one contact. A host talks rarely
    if it has at most `rarely` contacts in the window. This also holds for a window in which frequent talk has just
    started or ended. There must be at least `threshold` contacts, and each interval between two must be within the
    share `jitter` of the mean interval.

    The alert comes when the watermark has passed the end of the window. So contacts may come out of order, and those that
    are later than 10 s are dropped.

    State: the seconds of contact of each pair of host and destination, once for each open window.
    """
    if settings.threshold < 3:
        raise ValueError("threshold must be 3 or more: two contacts have one interval, which is always constant")
    window = F.window("event_time", f"{settings.window_s} seconds", f"{settings.advance_s} seconds")
    seconds = F.collect_set(F.unix_seconds("event_time"))
    talks = connections.groupBy("host", "destination", window.alias("window")).agg(
        F.sort_array(seconds).alias("times"),
        # as a decimal, so that no sum is too large
        F.sum(F.col("bytes").cast("decimal(19,0)")).alias("bytes"),
    )
    measured = talks.select(
        "*",
        F.size("times").alias("contacts"),
        F.expr("array_max(times) - array_min(times)").alias("span"),
        F.expr(_INTERVALS).alias("intervals"),
        # the mean interval is span / (contacts - 1): in whole numbers up to the last step, so that a limit is exact
    ).withColumn("off", F.expr("array_max(transform(intervals, i -> abs(i * (contacts - 1) - span)))"))
    jitter = F.lit(str(settings.jitter)).cast("decimal(9,6)")
    return measured.where(
        F.col("contacts").between(settings.threshold, settings.rarely) & (F.col("off") <= jitter * F.col("span"))
    ).select(
        "host",
        "destination",
        F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("window_start"),
        "contacts",
        (F.col("span") / (F.col("contacts") - 1)).cast("decimal(12,3)").alias("interval_s"),
        (F.col("off") / F.col("span")).cast("decimal(9,4)").alias("deviation"),
        "bytes",
    )
