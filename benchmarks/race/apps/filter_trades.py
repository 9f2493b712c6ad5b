"""A filter that passes one trade in twenty."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Json, Stream, app


@app(
    name="filter-trades",
    inputs={
        "trades": Stream(
            topic="trades",
            key="ticker string",
            value=Json("side string NOT NULL, price decimal(8,2) NOT NULL, size int NOT NULL"),
        )
    },
    result=AppendStream(key=("ticker",), partitions=4),
    settings={"over": 950},
)
def filter_trades(trades: DataFrame, settings: AppSettings) -> DataFrame:
    """Trades of more than `over` shares: ticker, side, price, size."""
    return trades.where(F.col("size") > settings.over).select("ticker", "side", "price", "size")
