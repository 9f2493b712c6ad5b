"""clickstream: each click with what is known about its user, and what the user has just searched for."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Changelog, Json, Stream, app, as_of


@app(
    name="clickstream",
    inputs={
        "clicks": Stream(topic="clicks", key="user string", value=Json("page string NOT NULL")),
        "profiles": Changelog(
            topic="profiles",
            key="user string",
            value=Json("age int, gender string, interests array<string>, zip string"),
        ),
        "searches": Stream(topic="searches", key="user string", value=Json("terms string NOT NULL")),
    },
    result=AppendStream(key=("user",), partitions=4),
    suite="clickstream",
    shows="join",
    oversized="dead-letter",
    watermark="10 seconds",
    settings={"within_ms": 1000},
)
def clickstream(clicks: DataFrame, profiles: DataFrame, searches: DataFrame, settings: AppSettings) -> DataFrame:
    """Each click with the profile that its user had then, and what the user had searched for just before.

    Result: user, page, at (of the click: UTC, `2013-03-01T14:30:01.250Z`), terms, age, gender, interests, zip. It does
    not name the record of the click, because a diff expects at most one row of a user from a record.

    The profile is that of the click's time: a new one changes later clicks, not earlier ones. If a user has no profile,
    or it was deleted, its columns are null. A search counts if the same user made it at most `within_ms` before the
    click, or in the same millisecond. A click after several such searches gives one row for each search; after none,
    `terms` is null.

    The rows of a click come when the watermark has passed it, because a profile or a search may come out of order.
    Clicks and searches that are more than 10 s late are dropped.
    """
    if settings.within_ms < 0:
        raise ValueError("within_ms must be 0 or more")
    # Spark compares a click with all searches of the same key in its state. So the key has a span of time, too: that of the
    # click, and each in which the search counts, most often one
    span = f"(unix_millis(event_time) + {{}}) div {4 * max(settings.within_ms, 1)}"
    spans = F.expr(f"sequence({span.format(0)}, {span.format(settings.within_ms)})")
    known = as_of(clicks, profiles, on="user").withColumn("span", F.expr(span.format(0)))
    asked = searches.select(
        F.col("user").alias("asker"),
        "terms",
        F.col("event_time").alias("asked_at"),
        F.explode(spans).alias("asked_span"),
    )
    same = (F.col("user") == F.col("asker")) & (F.col("span") == F.col("asked_span"))
    within = F.expr(f"INTERVAL {settings.within_ms} MILLISECONDS")
    after = F.col("event_time").between(F.col("asked_at"), F.col("asked_at") + within)
    at = F.date_format("event_time", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'").alias("at")
    return known.join(asked, same & after, "left_outer").select(
        "user", "page", at, "terms", "age", "gender", "interests", "zip"
    )
