"""Limits where the sources of a running query end their next batch, with real Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from pipelines.engine.frames import read_stream
from pipelines.engine.source_ends import SourceEnds
from pipelines.kafka.client import producer
from pipelines.model import Json, Stream
from pipelines.model.positions import SourcePosition
from pipelines.settings import Settings
from tests.conftest import FreshTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]

EACH = 40
Moves = dict[int, Callable[[SourceEnds], None]]


def at(left: tuple[int, int], right: tuple[int, int]) -> SourcePosition:
    return SourcePosition(sources={"left": dict(enumerate(left)), "right": dict(enumerate(right))})


class Led:
    """A query on two sources of one topic, with at most 10 records of each per batch. A move follows each batch."""

    def __init__(self, spark: SparkSession, broker: Settings, topic: str, checkpoint: Path, moves: Moves) -> None:
        self.inputs = {"left": topic, "right": topic}
        self.moves = moves
        self.read: dict[int, dict[str, list[int]]] = {}
        self._started = threading.Event()
        source = Stream(topic=topic, key="k string", value=Json("n long"))
        frames = [
            read_stream(spark, broker, source, {0: 0, 1: 0}, 10).select(F.lit(name).alias("source"), "partition", "offset")
            for name in self.inputs
        ]  # fmt: skip
        writer = frames[0].unionAll(frames[1]).writeStream.foreachBatch(self._batch)
        self._query: Any = writer.option("checkpointLocation", str(checkpoint)).start()
        self._started.set()

    def _batch(self, rows: DataFrame, number: int) -> None:
        assert self._started.wait(30)
        ends = {name: [0, 0] for name in self.inputs}
        for source, partition, last in rows.groupBy("source", "partition").agg(F.max("offset")).collect():
            ends[source][partition] = last + 1
        self.read[number] = ends
        if number in self.moves:
            self.moves[number](SourceEnds(self._query, self.inputs))

    def to_rest(self) -> None:
        """Until it may read nothing more."""
        self._query.processAllAvailable()
        self._query.stop()


def test_a_batch_ends_exactly_where_its_sources_are_closed(
    spark: SparkSession, broker: Settings, fresh_topic: FreshTopic, tmp_path: Path
) -> None:
    topic = fresh_topic(2)
    client = producer(broker)
    for number in range(2 * EACH):
        client.produce(topic, '{"n": 1}', "k", partition=number % 2)
    assert client.flush(30) == 0
    led = Led(spark, broker, topic, tmp_path, {0: lambda ends: ends.limit_to(at((8, 5), (5, 12)))})
    led.to_rest()
    assert led.read == {
        0: {"left": [5, 5], "right": [5, 5]},
        # each source separately; there is no entry where nothing was read
        1: {"left": [8, 0], "right": [0, 12]},
    }
    # another query on that checkpoint has no limit; a limited one has none after its sources are lifted
    moves: Moves = {2: lambda ends: ends.limit_to(at((14, 11), (11, 18))), 3: SourceEnds.lift}
    again = Led(spark, broker, topic, tmp_path, moves)
    again.to_rest()
    assert again.read[3] == {"left": [14, 11], "right": [11, 18]}
    [last] = [ends for number, ends in again.read.items() if number == max(again.read)]
    assert max(max(ends) for ends in last.values()) == EACH


def test_sources_that_are_not_known_are_an_error(
    spark: SparkSession, broker: Settings, fresh_topic: FreshTopic, tmp_path: Path
) -> None:
    topic = fresh_topic(1)
    source = Stream(topic=topic, key="k string", value=Json("n long"))
    frame = read_stream(spark, broker, source, {0: 0}, 10)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        with pytest.raises(LookupError, match="no source for orders"):
            SourceEnds(query, {"trades": topic, "orders": "another"})
    finally:
        query.stop()
