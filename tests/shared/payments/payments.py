"""payments: what each payment is worth, at the rates that the topic had when the version was staged."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Json, StaticTable, Stream, Table, app


@app(
    name="payments",
    inputs={
        "paid": Stream(
            topic="paid", key="id string", value=Json("currency string NOT NULL, amount decimal(10,2) NOT NULL")
        ),
        "rates": StaticTable(topic="rates", key="currency string", value=Json("rate decimal(8,4) NOT NULL")),
    },
    result=Table(key=("id",), partitions=2),
)
def payments(paid: DataFrame, rates: DataFrame, settings: AppSettings) -> DataFrame:
    worth = (F.col("amount") * F.col("rate")).cast("decimal(12,2)").alias("worth")
    return paid.join(rates, "currency", "left").select("id", "currency", worth)
