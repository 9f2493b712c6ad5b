"""search-results: which results people click, and how each ranks among the results of its query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from pipelines.model import AppSettings, Json, Stream, Table, app

if TYPE_CHECKING:
    import pandas as pd


class Ranking(StatefulProcessor):
    """The state of a query: the clicks of each result."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        # one map, as one click can change the rank of any result
        self._clicks = handle.getValueState("clicks", "results map<string,bigint>")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        # here, as Dagster imports all apps, and pandas takes long; Python workers have it loaded
        import pandas as pd

        [before] = self._clicks.get() or ({},)
        clicks = dict(before)
        for frame in rows:
            for result in frame["result"].tolist():
                clicks[result] = clicks.get(result, 0) + 1
        self._clicks.update((clicks,))
        was, now = ranked(before), ranked(clicks)
        told = [(*key, result, *place) for result, place in now.items() if place != was.get(result)]
        yield pd.DataFrame(told, columns=["query", "result", "clicks", "rank"])

    def close(self) -> None:
        """Nothing is open."""


def ranked(clicks: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Result -> its clicks and its rank, which is one more than the number of results with more clicks."""
    ranks: dict[int, int] = {}
    for rank, count in enumerate(sorted(clicks.values(), reverse=True), start=1):
        ranks.setdefault(count, rank)
    return {result: (count, ranks[count]) for result, count in clicks.items()}


@app(
    name="search-results",
    inputs={
        "searches": Stream(topic="searches", key="user string", value=Json("terms string NOT NULL")),
        "clicks": Stream(topic="clicks", key="user string", value=Json("page string NOT NULL")),
    },
    # append mode: Spark joins two streams in no other
    result=Table(key=("query", "result"), partitions=4, emit="final"),
    suite="search_results",
    shows="join",
    oversized="dead-letter",
    watermark="10 seconds",
    settings={"within_s": 5},
)
def search_results(searches: DataFrame, clicks: DataFrame, settings: AppSettings) -> DataFrame:
    """Per query and result: how often it was clicked, and how it ranks among the results of its query.

    Result: query (the search terms), result (the page), clicks, rank (1 has the most clicks; results with equal clicks
    share a rank, and the next rank is left out). A row comes with each change of the clicks or of the rank.

    A click is one on a result of a search if the same user made both, at most `within_s` apart by event time. Either
    may be the earlier one, as in a join window of Kafka Streams. A click near two searches counts for both, and one
    near none counts for none. A click or search that is more than 10 s late is dropped. Each waits in the state for its
    partners for `within_s` and 10 s.

    Spark has no rank over a stream, and in append mode no count that never ends. So both are Python, after the join in
    the same query: one call for each search query that a batch has clicks for. It reads and writes the clicks of all
    results of the query, and ranks them. No query is ever forgotten.
    """
    # Spark compares a click with all searches of the same key in its state. So the key has a span of time, too: that of the
    # click, and each in which a click may be near the search, most often one
    within_ms = settings.within_s * 1_000
    span = f"(unix_millis(event_time) + {{}}) div {8 * max(within_ms, 1)}"
    spans = F.expr(f"sequence({span.format(-within_ms)}, {span.format(within_ms)})")
    asked = searches.select(
        F.col("user").alias("asker"),
        F.col("terms").alias("query"),
        F.col("event_time").alias("asked_at"),
        F.explode(spans).alias("asked_span"),
    )
    clicked = clicks.select(
        "user",
        F.col("page").alias("result"),
        F.col("event_time").alias("clicked_at"),
        F.expr(span.format(0)).alias("span"),
    )
    same = (F.col("user") == F.col("asker")) & (F.col("span") == F.col("asked_span"))
    within = F.expr(f"INTERVAL {settings.within_s} SECONDS")
    near = F.col("clicked_at").between(F.col("asked_at") - within, F.col("asked_at") + within)
    pairs = asked.join(clicked, same & near).select("query", "result")
    return pairs.groupBy("query").transformWithStateInPandas(
        Ranking(), "query string, result string, clicks bigint, rank int", "append", "none"
    )
