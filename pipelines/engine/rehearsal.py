"""An app on inputs in memory: its frames as a driver makes them, without Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from pipelines.engine.frames import MALFORMED, delay_of, input_columns, observed, parse
from pipelines.engine.jvm.classes import class_name
from pipelines.engine.memory import MemorySource
from pipelines.engine.raw import Record
from pipelines.engine.repeats import is_input, nodes, notes
from pipelines.engine.results import applied, marked
from pipelines.engine.stale import stale_notes
from pipelines.engine.static import frame_of
from pipelines.engine.table_file import Row
from pipelines.engine.topology import Step, topology
from pipelines.errors import Refused
from pipelines.model.app import App, Comparable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
# Spark's names of what sets processing-time timers
_CLOCKS = {"ProcessingTime$", "ProcessingTimeTimeout$"}
# the topic of a record that no function sees; no topic of Kafka's has an empty name
_TICK = ""


class Rehearsal:
    """The inputs of an app and the result of its function, ready to be started as a query.

    `tables`: the rows of its static tables by name; those that are not named are empty.
    """

    def __init__(
        self,
        spark: SparkSession,
        app: App,
        settings: Mapping[str, Any],
        tables: Mapping[str, Sequence[Row]] = MappingProxyType({}),
    ) -> None:
        self._spark, self._app, self._settings, self._tables = spark, app, settings, tables
        self._sources = {name: MemorySource(spark) for name in app.sources}
        self._frames: dict[str, DataFrame] = {}

    @property
    def comparable(self) -> Comparable:
        """What a diff of two runs with these settings means."""
        return self._app.comparable_with(self._settings)

    def with_watermark(self, delay: str) -> Rehearsal:
        """The same app with a watermark."""
        return Rehearsal(self._spark, replace(self._app, watermark=delay), self._settings, self._tables)

    def result(self) -> DataFrame:
        """The function's result on the inputs. Raises what the function raises, and BadUsage as `results.applied` does.

        Raises Refused for processing-time timers: Spark would run batches without end to see whether one is due.
        """
        self._frames = {name: self._input(name) for name in self._app.sources} | {
            name: frame_of(self._spark, name, table, self._tables.get(name, ()))
            for name, table in self._app.static_tables.items()
        }
        found = applied(self._app, self._frames, self._settings)
        if any(_is_by_clock(node) for node in nodes(found._jdf.queryExecution().analyzed())):
            raise Refused(
                f"the function of app {self._app.name} has processing-time timers: "
                "a replay would not give the same result",
                fix="use timers by event time, as in transformWithStateInPandas(..., timeMode='eventTime'), and a watermark",
            )
        return found

    def steps(self, result: DataFrame) -> list[Step]:
        """What the function does between its inputs and `result`, which it has returned."""
        plans = {name: frame._jdf.queryExecution().analyzed() for name, frame in self._frames.items()}
        return topology(result._jdf.queryExecution().analyzed(), plans)

    def notes(self, result: DataFrame) -> list[str]:
        """What the author should know of `result`, which the function has returned: what a replay may not repeat."""
        sources = {name: self._frames[name]._jdf.queryExecution().analyzed() for name in self._app.sources}
        keeps_state = any(step.state for step in self.steps(result))
        return [*notes(result), *stale_notes(self._app, result, sources, keeps_state=keeps_state)]

    def add(self, name: str, records: Iterable[Record]) -> None:
        """Gives source `name` records for the next batch."""
        self._sources[name].add(list(records))

    def times_read(self, query: Any) -> dict[str, int]:
        """Source -> how often `query`, which runs or has run, reads it."""
        streams = query._jsq.streamingQuery().sources()
        read = [streams.apply(number) for number in range(streams.size())]
        return {name: sum(source.is_source(each) for each in read) for name, source in self._sources.items()}

    def is_read_by(self, query: Any) -> bool:
        """Whether `query`, which may just have been started, reads any of the sources."""
        plan = query._jsq.streamingQuery().analyzedPlan()
        streams = [leaf.table().stream() for leaf in nodes(plan) if is_input(leaf)]
        return any(source.is_source(stream) for stream in streams for source in self._sources.values())

    def _input(self, name: str) -> DataFrame:
        source = self._app.sources[name]
        input_columns(name, source)
        is_tick = F.col("topic") == _TICK
        parsed = parse(self._sources[name].frame, source, delay_of(self._app))
        good = observed(parsed.withColumn(MALFORMED, F.when(~is_tick, F.col(MALFORMED))), name)
        return marked(self._app, good.where(~is_tick))


def _is_by_clock(node: Any) -> bool:
    match class_name(node):
        case "TransformWithStateInPandas":
            mode = node.timeMode()
        case "FlatMapGroupsInPandasWithState":
            mode = node.timeout()
        case _:
            return False
    return class_name(mode) in _CLOCKS


def tick() -> Record:
    """A record that makes Spark run a batch. The app's function does not see it, and it is not malformed."""
    return Record(topic=_TICK, partition=0, offset=-1, key=None, value=None, time=_LONG_AGO)
