"""bookings: one reservation event reaches every department that needs it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Json, Stream, app

RESERVATION = Json(
    "booking string NOT NULL, guest string NOT NULL, email string NOT NULL, hotel string NOT NULL, "
    "arrives date NOT NULL, nights int NOT NULL, price decimal(10,2) NOT NULL"
)


@app(
    name="bookings",
    inputs={"bookings": Stream(topic="bookings", value=RESERVATION)},
    results={
        "confirmations": AppendStream(key=("guest",), partitions=4, suite="bookings_confirmations"),
        "calendar": AppendStream(key=("hotel",), partitions=4, suite="bookings_calendar"),
        "customer-360": AppendStream(key=("guest",), partitions=4, suite="bookings_customer_360"),
    },
    shows="single event",
    oversized="dead-letter",
)
def bookings(bookings: DataFrame, settings: AppSettings) -> DataFrame:
    """Tells three departments about each hotel reservation: one sends mails, one plans rooms, and one knows the
    customer.

    Results, each with topic, partition and offset of the reservation:

    - `confirmations` by guest: booking, email, hotel, arrives, nights.
    - `calendar` by hotel: booking, arrives, leaves.
    - `customer-360` by guest: booking, hotel, nights, spent.

    A reservation that no department could act on reaches none of them: one of less than a night, one that ends after the
    last date there is, and one with a price below 0. It is not a dead letter, because its record fits the schema.

    The program that mails the confirmations skips records with the header `replay`: these reservations were processed
    before.
    """
    source = ("topic", "partition", "offset")
    leaves = F.date_add("arrives", F.col("nights")).alias("leaves")
    # past the last date, `leaves` would be one before `arrives`
    possible = bookings.where((F.col("nights") > 0) & (leaves > F.col("arrives")) & (F.col("price") >= 0))
    return possible.select(
        F.struct("guest", "booking", "email", "hotel", "arrives", "nights", *source).alias("confirmations"),
        F.struct("hotel", "booking", "arrives", leaves, *source).alias("calendar"),
        F.struct("guest", "booking", "hotel", "nights", F.col("price").alias("spent"), *source).alias("customer-360"),
    )
