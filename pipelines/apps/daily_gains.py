"""daily-gains: what each ticker gained on each day."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Json, Stream, Table, app


@app(
    name="daily-gains",
    inputs={"trades": Stream(topic="trades", key="ticker string", value=Json("price decimal(8,2) NOT NULL"))},
    result=Table(key=("ticker", "day"), partitions=4),
    suite="daily_gains",
    shows="aggregate",
    oversized="dead-letter",
)
def daily_gains(trades: DataFrame, settings: AppSettings) -> DataFrame:
    """Per ticker and day: the prices of its first, last, lowest and highest trade, and what it gained.

    Result: ticker, day (UTC, `2013-03-01`), open, close, lowest, highest (dollars), gain_percent (from open to close,
    to 4 decimals; null if the open is 0). First and last go by event time, not by arrival. If several trades have the
    same millisecond, the one that came first opens, and the one that came last closes. A trade changes its day however
    late it comes.
    """
    # all trades of a ticker are in one partition, so offsets order those of the same millisecond
    when = F.struct("event_time", "partition", "offset")
    days = trades.groupBy("ticker", F.date_format("event_time", "yyyy-MM-dd").alias("day")).agg(
        F.min_by("price", when).alias("open"),
        F.max_by("price", when).alias("close"),
        F.min("price").alias("lowest"),
        F.max("price").alias("highest"),
    )
    gain = F.try_divide((F.col("close") - F.col("open")) * 100, F.col("open"))
    return days.select("*", F.round(gain, 4).cast("decimal(16,4)").alias("gain_percent"))
