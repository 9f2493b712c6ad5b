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
    oversized="dead-letter",
)
def shoe_store(events: DataFrame, settings: AppSettings) -> DataFrame:
    """Adds up shipments, sales and returns of shoes, per color and for the whole store.

    Results:

    - `inventory` by color: in_stock (pairs), sold (pairs, less those returned), taken (money, less refunds), oversold
      (in_stock is below 0).
    - `totals` by store, one row for the store `all`: in_stock, taken, transactions (sales and returns).

    A shipment adds `count` pairs. A sale takes them out and takes `count` times `price`; a return does the opposite.
    Any other kind of event is not counted.

    A sale of what is not in stock counts, and takes in_stock below 0. `oversold` flags that as of the last event of the
    batch: more pairs went out than had come in. It goes when enough of them have come in, and it is never set if they
    come in the same batch. So the last row of a color does not depend on the batches, nor on the order of the events:
    the partitions of a topic have no common order that a replay could repeat.

    Sums are wide decimals, because an event that makes one overflow would stop every release: 2^63 events of the largest
    count and price fit.
    """
    known = events.where(F.col("kind").isin("shipment", "sale", "return"))
    is_sale, is_return = F.col("kind") == "sale", F.col("kind") == "return"
    # as a decimal, so that neither a sign nor a sum makes it too large
    pairs = F.col("count").cast("decimal(19,0)")
    sold = F.when(is_sale, pairs).when(is_return, -pairs).otherwise(0)
    moved = known.select(
        "color",
        F.when(is_sale, -pairs).otherwise(pairs).alias("pairs"),
        sold.alias("sold"),
        (sold * F.col("price")).alias("taken"),
        (is_sale | is_return).cast("int").alias("transaction"),
    )
    # each event counts for its color and, without a color, for the store
    counted = moved.withColumn("of", F.explode(F.array("color", F.lit(None)))).groupBy("of")
    sums = counted.agg(
        F.sum("pairs").alias("in_stock"),
        F.sum("sold").alias("sold"),
        F.sum("taken").alias("taken"),
        F.sum("transaction").alias("transactions"),
    )
    oversold = (F.col("in_stock") < 0).alias("oversold")
    row = F.struct(F.col("of").alias("color"), "in_stock", "sold", "taken", oversold)
    total = F.struct(F.lit("all").alias("store"), "in_stock", "taken", "transactions")
    return sums.select(
        F.when(F.col("of").isNotNull(), row).alias("inventory"),
        F.when(F.col("of").isNull(), total).alias("totals"),
    )
