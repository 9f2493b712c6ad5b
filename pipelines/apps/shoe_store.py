"""shoe-store: what is in stock per color and what came in, as tables of the stream of events."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Json, Stream, Table, app

EVENT = Json("kind string NOT NULL, color string NOT NULL, count int NOT NULL, price decimal(8,2) NOT NULL")


@app(
    name="shoe-store",
    inputs={"events": Stream(topic="store-events", value=EVENT)},
    results={
        "inventory": Table(key=("color",), partitions=4, suite="shoe_store_inventory"),
        "totals": Table(key=("store",), partitions=1, suite="shoe_store_totals"),
    },
    shows="aggregate",
)
def shoe_store(events: DataFrame, settings: AppSettings) -> DataFrame:
    """Adds up shipments, sales and returns of shoes, per color and for the whole store.

    Results:

    - `inventory` by color: in_stock (pairs), sold (pairs, less those returned), taken (money, less refunds), oversold
      (more was sold than was ever there: the sale counts, and is flagged).
    - `totals` by store, one row for the store `all`: in_stock, taken, transactions (sales and returns).

    A shipment adds `count` pairs. A sale takes them out and takes `count` times `price`; a return does the opposite.
    Any other kind of event is not counted.
    """
    known = events.where(F.col("kind").isin("shipment", "sale", "return"))
    sign = F.when(F.col("kind") == "sale", 1).when(F.col("kind") == "return", -1).otherwise(0)
    moved = known.select(
        "color",
        F.when(F.col("kind") == "sale", -F.col("count")).otherwise(F.col("count")).alias("pairs"),
        (sign * F.col("count")).alias("sold"),
        (sign * F.col("count") * F.col("price")).alias("taken"),
        (sign != 0).cast("int").alias("transaction"),
    )
    # each event counts for its color and, without a color, for the store
    counted = moved.withColumn("of", F.explode(F.array("color", F.lit(None)))).groupBy("of")
    sums = counted.agg(
        F.sum("pairs").alias("in_stock"),
        F.sum("sold").alias("sold"),
        F.sum("taken").cast("decimal(18,2)").alias("taken"),
        F.sum("transaction").alias("transactions"),
    )
    oversold = (F.col("in_stock") < 0).alias("oversold")
    row = F.struct(F.col("of").alias("color"), "in_stock", "sold", "taken", oversold)
    total = F.struct(F.lit("all").alias("store"), "in_stock", "taken", "transactions")
    return sums.select(
        F.when(F.col("of").isNotNull(), row).alias("inventory"),
        F.when(F.col("of").isNull(), total).alias("totals"),
    )
