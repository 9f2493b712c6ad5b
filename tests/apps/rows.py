"""Input rows as an app's function gets them, and the rows of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pipelines.model import App, AppSettings, Json, Text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2013, 3, 1, 12, 0, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """So many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def schema_of(app: App, name: str) -> str:
    """Spark DDL of input `name`: key, value, event_time, topic, partition, offset."""
    source = app.inputs[name]
    value = source.value
    columns = value.schema.replace(" NOT NULL", "") if isinstance(value, Json) else ""
    columns = f"{value.column} string" if isinstance(value, Text) else columns
    added = "event_time timestamp, topic string, partition int, offset long"
    return ", ".join(each for each in (source.key, columns, added) if each)


def frame(spark: SparkSession, app: App, name: str, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    """Rows of (key, value columns, event time); topic, partition 0 and ascending offsets are added."""
    topic = app.inputs[name].topic
    data = [(*row, topic, 0, offset) for offset, row in enumerate(rows)]
    return spark.createDataFrame(data, schema_of(app, name))


def run(app: App, frames: Mapping[str, DataFrame], **settings: Any) -> list[tuple[Any, ...]]:
    """The function's result, sorted. Decimals as float, so that rows written by hand are short."""
    result = app.function(**frames, settings=AppSettings({**app.settings, **settings}))
    return sorted(tuple(float(v) if isinstance(v, Decimal) else v for v in row) for row in result.collect())
