"""Joins a stream with a table, as the table was at the time of each of the stream's rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from pipelines.errors import BadUsage
from pipelines.model.tables import key_of, value_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# what the names of observations that count a table's late records start with
LATE = "late records of a table "
_WATERMARK = "spark.watermarkDelayMs"
_numbers = count(1)


def as_of(stream: DataFrame, table: DataFrame, *, on: str | Sequence[str]) -> DataFrame:
    """Each row of `stream` with the table's columns, as of the row's `event_time`: its columns, then those of `table`
    without its key and without event_time, topic, partition, offset and deleted.

    A row sees the version of its key that is the latest at or before its time; among versions with the same time, the
    one that is last in its partition. The table's columns are null where the key has no version, or was deleted. A row
    is in the result once the watermark has reached its time.

    `stream`: a Stream, or a DataFrame made from one, with its column `event_time`. `table`: a Changelog, with any
    columns added, renamed or left out, but all of its rows. `on`: the columns of the table's key, which `stream` must
    have with the same types. Raises BadUsage if the arguments are not as described here, or the app has no watermark.
    """
    names = [on] if isinstance(on, str) else list(on)
    key = key_of(table, "the table of as_of")
    _check_times(stream)
    _check_on(stream, table, names, key)
    taken = value_columns(table, key, "the table of as_of")
    if both := [name for name in taken if name.lower() in {column.lower() for column in stream.columns}]:
        raise BadUsage(
            f"as_of: the stream and the table both have a column {', '.join(both)}",
            fix=f'rename one first, as in table.withColumnRenamed("{both[0]}", "table_{both[0]}")',
        )
    spark = stream.sparkSession
    jvm: Any = spark.sparkContext._jvm
    # each in a query needs a name of its own
    late = f"{LATE}{next(_numbers)}"
    joined = getattr(jvm, "org.apache.spark.sql.switchyard.AsOf").join(stream._jdf, table._jdf, names, taken, late)
    return type(stream)(joined, spark)


def _check_times(stream: DataFrame) -> None:
    fields = {field.name: field for field in stream.schema.fields}
    if "event_time" not in fields:
        raise BadUsage("as_of needs the column event_time of its stream", fix="keep it until after the join")
    if _WATERMARK not in fields["event_time"].metadata:
        raise BadUsage(
            "as_of needs a watermark: a row waits until no earlier record of the table can come",
            fix='give @app one, as in watermark="10 seconds", and pass event_time on as it is',
        )


def _check_on(stream: DataFrame, table: DataFrame, names: list[str], key: list[str]) -> None:
    if sorted(names) != sorted(key):
        raise BadUsage(
            f"as_of: on={names} is not the key of the table, {', '.join(key)}",
            fix="join on all columns of the key and no other; rename the stream's columns to them",
        )
    for name in names:
        types = [
            next((f.dataType.simpleString() for f in frame.schema.fields if f.name == name), "missing")
            for frame in (stream, table)
        ]
        if types[0] != types[1] or types[0] == "missing":
            raise BadUsage(
                f"as_of: {name} is {types[0]} in the stream and {types[1]} in the table", fix="cast one of them"
            )
