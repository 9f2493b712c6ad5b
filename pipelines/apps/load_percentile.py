"""load-percentile: how long the requests of each host take, minute by minute."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Json, Stream, Table, app


@app(
    name="load-percentile",
    inputs={"requests": Stream(topic="requests", key="host string", value=Json("latency_ms int NOT NULL"))},
    result=Table(key=("host", "minute"), partitions=4, emit="final"),
    suite="load_percentile",
    shows="window",
    oversized="dead-letter",
    watermark="10 seconds",
)
def load_percentile(requests: DataFrame, settings: AppSettings) -> DataFrame:
    """Per host and minute: the 99th percentile of the minute, and the average of the five minutes that it ends.

    Result: host, minute (its start in UTC, `2013-03-01T14:30:00Z`), requests (in the minute), p99_ms (the smallest latency that
    at least 99 % of the minute's requests do not exceed; null without requests), average_ms (over all requests of the five
    minutes, to 4 decimals).

    A minute gives one row, when the watermark has passed its end. A host without requests gets rows as long as the five
    minutes have any request. A request that is more than 10 s late is dropped from the minutes that are over; it still
    counts in the averages of the minutes after them.

    State: for each host and minute that is not over, how often each latency came in the minute. The percentile is
    exact, so this grows with the number of different latencies. A request is counted in five windows.
    """
    windowed = requests.select("*", F.window("event_time", "5 minutes", "1 minute").alias("window"))
    minute = F.expr("window.end - INTERVAL 1 MINUTE")
    # null for the requests of the four minutes before, which aggregates leave out
    own = F.when(F.col("event_time") >= minute, F.col("latency_ms"))
    loads = (
        windowed.withColumn("own", own)
        .groupBy("host", "window")
        .agg(
            F.count("own").alias("requests"),
            F.expr("percentile_disc(0.99) WITHIN GROUP (ORDER BY own)").cast("int").alias("p99_ms"),
            # as a decimal, so that the order of the requests makes no difference
            F.avg(F.col("latency_ms").cast("decimal(10,0)")).alias("average_ms"),
        )
    )
    at = F.date_format(minute, "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("minute")
    return loads.select("host", at, "requests", "p99_ms", "average_ms")
