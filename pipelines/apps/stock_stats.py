"""stock-stats: lowest and average ask of each ticker, in sliding windows."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Json, Stream, Table, app


@app(
    name="stock-stats",
    inputs={
        "trades": Stream(
            topic="trades", key="ticker string", value=Json("side string NOT NULL, price decimal(8,2) NOT NULL")
        )
    },
    result=Table(key=("ticker", "window_start"), partitions=4),
    suite="stock_stats",
    shows="window",
    oversized="dead-letter",
    watermark="10 seconds",
    settings={"window_s": 5, "advance_s": 1},
)
def stock_stats(trades: DataFrame, settings: AppSettings) -> DataFrame:
    """Per ticker and window of `window_s`, advancing by `advance_s`: over its asks, bids left out.

    Result: ticker, window_start (UTC, `2013-03-01T14:30:00Z`), lowest_ask (dollars), trades (number of
    asks), average_ask (dollars, to 6 decimals). Prices are decimals, so that sums don't depend on their order.
    """
    window = F.window("event_time", f"{settings.window_s} seconds", f"{settings.advance_s} seconds")
    return (
        trades.where(F.col("side") == "ask")
        .groupBy("ticker", window.alias("window"))
        .agg(
            F.min("price").alias("lowest_ask"),
            F.count(F.lit(1)).alias("trades"),
            F.avg("price").alias("average_ask"),
        )
        .select(
            "ticker",
            F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("window_start"),
            "lowest_ask",
            "trades",
            "average_ask",
        )
    )
