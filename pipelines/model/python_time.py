"""The time of a row as a number, for functions in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.errors import BadUsage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def time_us(frame: DataFrame) -> Column:
    """The column `event_time` of `frame` as a whole number, in microseconds since 1970, under the same name.

    For state of your own in Python: pandas has no time before 1677 or after 2262, so a record with such an `event_time`
    would make the batch fail. Spark drops late rows by this column as it does by `event_time` itself.

    `frame`: a Stream, or a DataFrame made from one. Raises BadUsage if it has no column `event_time`.
    """
    from pyspark.sql import functions as F

    found = next((field for field in frame.schema.fields if field.name == "event_time"), None)
    if found is None:
        raise BadUsage("time_us needs the column event_time", fix="keep it until then")
    # Spark knows the column of the watermark by its metadata, and compares microseconds
    return F.unix_micros("event_time").alias("event_time", metadata=found.metadata)
