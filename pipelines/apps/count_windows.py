"""count-windows: every three numbers of a key, in three kinds of windows that count records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from pipelines.model import AppendStream, AppSettings, Json, Stream, app

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = "key string, kind string, numbers array<bigint>, topic string, partition int, offset bigint"


class Windows(StatefulProcessor):
    """The state of a key: how many numbers it had, and the last ones, which its next windows may begin with."""

    def __init__(self, size: int, advances: Mapping[str, int]) -> None:
        self._size, self._advances = size, advances

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._recent = handle.getValueState("recent", "seen bigint, numbers array<bigint>")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        # here, as Dagster imports all apps, and pandas takes long; Python workers have it loaded
        import pandas as pd

        found = []
        seen, numbers = self._recent.get() or (0, [])
        # Spark gives the records of a batch in any order, and a large batch in several frames
        batch = (
            each for frame in rows for each in zip(frame["offset"].tolist(), frame["number"].tolist(), strict=True)
        )
        for offset, number in sorted(batch):
            seen, numbers = seen + 1, [*numbers, number][-self._size :]
            for kind, advance in self._advances.items():
                if seen >= self._size and (seen - self._size) % advance == 0:
                    name, topic, partition = key
                    found.append((name, kind, numbers, topic, partition, offset))
        self._recent.update((seen, numbers))
        if found:
            yield pd.DataFrame(found, columns=["key", "kind", "numbers", "topic", "partition", "offset"])

    def close(self) -> None:
        """Nothing is open."""


@app(
    name="count-windows",
    inputs={"numbers": Stream(topic="numbers", key="key string", value=Json("number bigint NOT NULL"))},
    result=AppendStream(key=("key", "kind"), partitions=4),
    suite="count_windows",
    shows="window",
    oversized="dead-letter",
    settings={"size": 3, "advance": 2},
)
def count_windows(numbers: DataFrame, settings: AppSettings) -> DataFrame:
    """Windows of `size` numbers of a key: sliding by 1, tumbling by `size`, hopping by `advance`.

    Result: key, kind (`sliding`, `tumbling` or `hopping`), numbers (`size` of them, in the order of their offsets), and
    topic, partition and offset of the record that completed the window. Numbers that fill no window yet wait in the state.
    Event times don't matter. The producer must put all records of a key into one partition: numbers of two partitions
    have no order, so each partition has windows of its own.

    Spark has no windows by count, so this is Python: a call for each key of a batch. One key's records are handled one
    after the other.
    """
    if settings.size < 1 or settings.advance < 1:
        raise ValueError("size and advance must be 1 or more")
    windows = Windows(settings.size, {"sliding": 1, "tumbling": settings.size, "hopping": settings.advance})
    numbered = numbers.select("key", "topic", "partition", "offset", "number")
    return numbered.groupBy("key", "topic", "partition").transformWithStateInPandas(windows, COLUMNS, "append", "none")
