"""not-viewing: tells users at every tick that they do not view the page, while they have it closed."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Changelog, Stream, Text, app, as_of


@app(
    name="not-viewing",
    inputs={
        "tick": Stream(topic="tick", key="user string", value=Text("tick")),
        "open": Changelog(topic="open", key="user string", value=Text("state")),
    },
    result=AppendStream(key=("user",), partitions=4),
    suite="not_viewing",
    shows="join",
    oversized="dead-letter",
    watermark="10 seconds",
)
def not_viewing(tick: DataFrame, open: DataFrame, settings: AppSettings) -> DataFrame:
    """Tells users at every tick that they do not view the page, while they have it closed.

    Result: user, message, at (UTC, `2013-03-01T14:30:01.250Z`: when the tick was), and topic, partition and offset of the
    tick.

    A tick tells a user if the user's last state before the tick, or in the same millisecond, is exactly `Close`. It
    does not tell a user whose state is unknown or was deleted. A tick is decided when the watermark has reached it, so
    a `Close` that comes up to 10 s late counts.
    """
    as_seen = as_of(tick, open, on="user")
    message = F.lit("You are not currently viewing Facebook.").alias("message")
    at = F.date_format("event_time", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'").alias("at")
    return as_seen.where(F.col("state") == "Close").select("user", message, at, "topic", "partition", "offset")
