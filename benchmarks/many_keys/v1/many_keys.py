"""A table of as many keys as its input has: version 1."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Json, Stream, Table, app


@app(
    name="many-keys",
    inputs={"numbers": Stream(topic="numbers", key="id string", value=Json("n long NOT NULL"))},
    result=Table(key=("id",), partitions=4),
)
def many_keys(numbers: DataFrame, settings: AppSettings) -> DataFrame:
    """Per id the greatest n, and how often it came."""
    return numbers.groupBy("id").agg(F.max("n").alias("n"), F.count("n").alias("times"))
