"""A stream joined with a table of many keys."""

from __future__ import annotations

from pyspark.sql import DataFrame

from pipelines.model import AppendStream, AppSettings, Changelog, Json, Stream, app, as_of


@app(
    name="join-visits",
    inputs={
        "visits": Stream(topic="visits", key="member string", value=Json("page int NOT NULL")),
        "members": Changelog(topic="members", key="member string", value=Json("level int NOT NULL")),
    },
    result=AppendStream(key=("member",), partitions=4),
    watermark="10 seconds",
)
def join_visits(visits: DataFrame, members: DataFrame, settings: AppSettings) -> DataFrame:
    """Each visit with the level that the member had then: member, page, level."""
    return as_of(visits, members, on="member").select("member", "page", "level")
