"""Every trade, read and written."""

from __future__ import annotations

from pyspark.sql import DataFrame

from pipelines.model import AppendStream, AppSettings, Json, Stream, app


@app(
    name="pass-trades",
    inputs={
        "trades": Stream(
            topic="trades",
            key="ticker string",
            value=Json("side string NOT NULL, price decimal(8,2) NOT NULL, size int NOT NULL"),
        )
    },
    result=AppendStream(key=("ticker",), partitions=4),
)
def pass_trades(trades: DataFrame, settings: AppSettings) -> DataFrame:
    """All trades: ticker, side, price, size."""
    return trades.select("ticker", "side", "price", "size")
