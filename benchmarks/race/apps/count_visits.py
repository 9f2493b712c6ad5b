"""A count by many keys."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Json, Stream, Table, app


@app(
    name="count-visits",
    inputs={"visits": Stream(topic="visits", key="member string", value=Json("page int NOT NULL"))},
    result=Table(key=("member",), partitions=4),
)
def count_visits(visits: DataFrame, settings: AppSettings) -> DataFrame:
    """Per member: visits, and the highest number of a page."""
    return visits.groupBy("member").agg(F.count(F.lit(1)).alias("visits"), F.max("page").alias("page"))
