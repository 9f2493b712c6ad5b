"""page-stats: how often each page was viewed, and from where, minute by minute."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Changelog, Json, Stream, Table, app, as_of


@app(
    name="page-stats",
    inputs={
        "clicks": Stream(topic="clicks", key="user string", value=Json("page string NOT NULL")),
        "profiles": Changelog(topic="profiles", key="user string", value=Json("zip string")),
    },
    # append mode: Spark has no other for an aggregate after a join
    results={
        "pages": Table(key=("page", "minute"), partitions=4, emit="final", suite="page_stats_pages"),
        "zips": Table(key=("zip", "minute"), partitions=4, emit="final", suite="page_stats_zips"),
    },
    shows="multi-phase",
    oversized="dead-letter",
    watermark="10 seconds",
)
def page_stats(clicks: DataFrame, profiles: DataFrame, settings: AppSettings) -> DataFrame:
    """The views of each page, and of each zip code that users live in, minute by minute.

    Results (`minute` is the start of the minute in UTC, `2013-03-01T14:30:00Z`):

    - `pages` by page, minute: views.
    - `zips` by zip, minute: views by users who lived there when they viewed the page. A view by a user whose zip code is
      not known then counts only in `pages`.

    A minute gives its rows once, when the watermark has passed its end. A click that is more than 10 s late is dropped
    from both results; a profile that is up to 10 s late counts from its own time on.

    The rows move between partitions twice: by user for the profile, then by page and by zip code for the counts.
    """
    viewed = as_of(clicks, profiles, on="user")
    # each view counts for its page and, if that is known, for its zip code
    nothing = F.lit(None).cast("string")
    of = F.explode(F.array(F.struct("page", nothing.alias("zip")), F.struct(nothing.alias("page"), "zip")))
    counted = viewed.select("event_time", of.alias("of")).select("event_time", "of.*")
    views = (
        counted.where(F.col("page").isNotNull() | F.col("zip").isNotNull())
        .groupBy("page", "zip", F.window("event_time", "1 minute").alias("window"))
        .agg(F.count(F.lit(1)).alias("views"))
    )
    minute = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("minute")
    return views.select(
        F.when(F.col("page").isNotNull(), F.struct("page", minute, "views")).alias("pages"),
        F.when(F.col("zip").isNotNull(), F.struct("zip", minute, "views")).alias("zips"),
    )
