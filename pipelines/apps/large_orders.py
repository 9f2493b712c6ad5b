"""large-orders: every order that the sales person should know about."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Json, Stream, app


@app(
    name="large-orders",
    inputs={
        "orders": Stream(
            topic="orders",
            key="customer string",
            value=Json("order_id string NOT NULL, sales_person string NOT NULL, amount decimal(14,2) NOT NULL"),
        )
    },
    result=AppendStream(key=("customer",), partitions=4),
    suite="large_orders",
    shows="single event",
    oversized="dead-letter",
    settings={"over_dollars": 10_000},
)
def large_orders(orders: DataFrame, settings: AppSettings) -> DataFrame:
    """Orders over `over_dollars`; exactly that much is not over.

    Result: customer, order_id, sales_person, amount (dollars), ordered_at (UTC, ISO 8601 to the
    millisecond), and the order's topic, partition and offset.
    """
    return orders.where(F.col("amount") > settings.over_dollars).select(
        "customer",
        "order_id",
        "sales_person",
        "amount",
        F.date_format("event_time", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'").alias("ordered_at"),
        "topic",
        "partition",
        "offset",
    )
