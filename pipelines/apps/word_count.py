"""word-count: how often each word occurs in lines of text."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Stream, Table, Text, app


@app(
    name="word-count",
    inputs={"lines": Stream(topic="lines", value=Text("line"))},
    result=Table(key=("word",), partitions=4),
    suite="word_count",
    shows="aggregate",
    oversized="dead-letter",
)
def word_count(lines: DataFrame, settings: AppSettings) -> DataFrame:
    """Counts the lower-cased words between non-word characters, except "the".

    Result: word, count. A word is a run of ASCII letters, digits and `_`, as in Java's `\\w`.
    """
    words = lines.select(F.explode(F.split(F.lower("line"), r"\W+")).alias("word"))
    return words.where((F.col("word") != "") & (F.col("word") != "the")).groupBy("word").count()
