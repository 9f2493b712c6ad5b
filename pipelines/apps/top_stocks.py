"""top-stocks: the ten tickers that gained most on each day, from the result of daily-gains."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from pipelines.model import AppSettings, Changelog, Json, ResultOf, Table, app

if TYPE_CHECKING:
    import pandas as pd


class Ranks(StatefulProcessor):
    """Ranks the tickers of a day. Gives each rank that has changed; a rank that no ticker has any more has nulls."""

    def __init__(self, top: int) -> None:
        self._top = top

    def init(self, handle: StatefulProcessorHandle) -> None:
        # one map of all tickers, as each batch reads them all; gains in ten-thousandths of a percent, as whole numbers
        self._gains = handle.getValueState("gains", "gains map<string,bigint>")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        # here, as Dagster imports all apps, and pandas takes long; Python workers have it loaded
        import pandas as pd

        [gains] = self._gains.get() or ({},)
        before = self._ranked(gains)
        gains = dict(gains)
        # of a ticker's changes the last one holds; all of them are in one partition
        changes = (change for frame in rows for change in frame.to_numpy().tolist())
        for _, ticker, is_known, gain, *_ in sorted(changes, key=itemgetter(4, 5)):
            if is_known:
                gains[ticker] = gain
            else:
                gains.pop(ticker, None)
        self._gains.update((gains,))
        after = self._ranked(gains)
        ranks = range(max(len(before), len(after)))
        told = [
            (key[0], rank + 1, *(after[rank] if rank < len(after) else (None, None)))
            for rank in ranks
            if before[rank : rank + 1] != after[rank : rank + 1]
        ]
        if told:
            # objects: pandas would make floats of whole numbers in a column with nulls
            yield pd.DataFrame(told, columns=["day", "rank", "ticker", "gain"], dtype=object)

    def _ranked(self, gains: dict[str, int]) -> list[tuple[str, int]]:
        """Ticker and gain of the first ranks; tickers with the same gain in alphabetical order."""
        return sorted(gains.items(), key=lambda each: (-each[1], each[0]))[: self._top]

    def close(self) -> None:
        """Nothing is open."""


@app(
    name="top-stocks",
    inputs={
        "gains": Changelog(
            topic=ResultOf("daily-gains"),
            key=Json("ticker string NOT NULL, day string NOT NULL"),
            value=Json("gain_percent decimal(16,4)"),
        )
    },
    result=Table(key=("day", "rank"), partitions=1),
    suite="top_stocks",
    shows="multi-phase",
    oversized="dead-letter",
    settings={"top": 10},
)
def top_stocks(gains: DataFrame, settings: AppSettings) -> DataFrame:
    """The `top` tickers that gained most from open to close, for each day.

    Result: day (UTC, `2013-03-01`), rank (from 1), ticker, gain_percent. Tickers with the same gain come in
    alphabetical order. A late trade can change a day and its ranks; a rank that no ticker has any more is deleted. A
    ticker whose gain is not known (its first trade was free) has no rank.

    It reads the result of `daily-gains`: the release that was live when it was staged.
    """
    if settings.top < 1:
        raise ValueError("top must be 1 or more")
    gain = (F.col("gain_percent") * 10_000).cast("bigint")
    # 0 instead of null, which pandas would make a float, and all other gains, too
    known = gain.isNotNull().alias("is_known"), F.coalesce(gain, F.lit(0)).alias("gain")
    changes = gains.select("day", "ticker", *known, "partition", "offset")
    ranked = changes.groupBy("day").transformWithStateInPandas(
        Ranks(settings.top), "day string, rank int, ticker string, gain bigint", "update", "none"
    )
    return ranked.select("day", "rank", "ticker", (F.col("gain") / 10_000).cast("decimal(16,4)").alias("gain_percent"))
