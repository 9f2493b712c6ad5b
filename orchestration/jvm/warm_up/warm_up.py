"""warm-up: what the class archive is made of. It is no app to use."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Changelog, Json, Stream, Table, app, as_of


@app(
    name="warm-up",
    inputs={
        "trades": Stream(topic="trades", key="ticker string", value=Json("side string NOT NULL, size long")),
        "prices": Changelog(topic="trades", key="ticker string", value=Json("price decimal(8,2) NOT NULL")),
    },
    result=Table(key=("ticker", "window_start"), partitions=4, emit="final"),
    watermark="1 second",
)
def warm_up(trades: DataFrame, prices: DataFrame, settings: AppSettings) -> DataFrame:
    """A join with a table, then windows: a driver that runs both loads the classes of either."""
    priced = as_of(trades, prices, on="ticker").where(F.col("side") == "ask")
    window = F.window("event_time", "2 seconds", "1 second").alias("window")
    found = priced.groupBy("ticker", window).agg(F.min("price").alias("lowest"), F.count(F.lit(1)).alias("trades"))
    start = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("window_start")
    return found.select("ticker", start, "lowest", "trades")
