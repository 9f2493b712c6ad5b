"""close-notifications: tells users that they have closed the page."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Stream, Text, app


@app(
    name="close-notifications",
    inputs={"open": Stream(topic="open", key="user string", value=Text("state"))},
    result=AppendStream(key=("user",), partitions=4),
    suite="close_notifications",
    shows="single event",
    oversized="dead-letter",
)
def close_notifications(open: DataFrame, settings: AppSettings) -> DataFrame:
    """Tells a user who has closed the page: "You are not currently viewing Facebook."

    Result: user, message, and topic, partition and offset of the event. Only an event with exactly the text `Close`
    gives a row; `Open` and any other text give none.
    """
    closed = open.where(F.col("state") == "Close")
    message = F.lit("You are not currently viewing Facebook.").alias("message")
    return closed.select("user", message, "topic", "partition", "offset")
