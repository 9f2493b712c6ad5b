"""Joins two tables that have the same key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pipelines.errors import BadUsage
from pipelines.model.names import quoted
from pipelines.model.tables import key_of, value_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def join_tables(left: DataFrame, right: DataFrame, *, how: Literal["inner", "left", "outer"] = "inner") -> DataFrame:
    """The join of two tables by their key, as it is after each batch: the key's columns, then those of both values.

    `left`, `right`: a Changelog each, with any columns added, renamed or left out, but all of its rows. Both keys have
    the same columns. The newest record of a key is the one with the highest offset, whatever its event time. `how`: a
    key has a row if it is in both tables (`inner`), in the left one (`left`), or in any of them (`outer`). The columns
    of a table that lacks the key are null. Where a key has no row, or no longer one, all columns but the key's are null:
    a Table then deletes its row.

    The result fits a Table with the same key. State: the newest row of each key of both tables, also of deleted keys.
    Raises BadUsage if the arguments are not as described here.
    """
    from pyspark.sql import functions as F

    if how not in ("inner", "left", "outer"):
        raise BadUsage(f"join_tables: there is no how={how!r}", fix="use inner, left or outer")
    key = _common_key(left, right)
    key_columns = [quoted(name) for name in key]
    ours, theirs = value_columns(left, key, _LEFT), value_columns(right, key, _RIGHT)
    if both := [name for name in ours if name.lower() in {other.lower() for other in theirs}]:
        raise BadUsage(
            f"join_tables: both tables have a column {', '.join(both)}",
            fix=f'rename one first, as in right.withColumnRenamed("{both[0]}", "right_{both[0]}")',
        )

    def side(frame: DataFrame, values: list[str], name: str) -> DataFrame:
        row = F.when(~F.col("deleted"), F.struct(*map(quoted, values)))
        # all records of a key are in one partition of a topic, so their offsets order them
        return frame.select(*key_columns, row.alias(name), F.struct("partition", "offset").alias(f"{name} at"))

    records = side(left, ours, "left row").unionByName(side(right, theirs, "right row"), allowMissingColumns=True)
    # a record of one table has null for the other's order, and so is never the newest of it
    newest = [F.max_by(name, f"{name} at").alias(name) for name in ("left row", "right row")]
    in_left, in_right = F.col("left row").isNotNull(), F.col("right row").isNotNull()
    has_row = {"inner": in_left & in_right, "left": in_left, "outer": in_left | in_right}[how]
    values = [
        F.when(has_row, F.col(row)[name]).alias(name)
        for row, names in (("left row", ours), ("right row", theirs))
        for name in names
    ]
    return records.groupBy(*key_columns).agg(*newest).select(*key_columns, *values)


_LEFT, _RIGHT = "the left table of join_tables", "the right table of join_tables"


def _common_key(left: DataFrame, right: DataFrame) -> list[str]:
    """The columns of the key of both tables. Raises BadUsage if they differ in name or type."""
    keys = [
        {name: frame.schema[name].dataType.simpleString() for name in key_of(frame, called)}
        for frame, called in ((left, _LEFT), (right, _RIGHT))
    ]
    if keys[0] != keys[1]:
        told = ["(" + ", ".join(f"{name} {kind}" for name, kind in key.items()) + ")" for key in keys]
        raise BadUsage(
            f"join_tables: the left table has the key {told[0]}, the right one {told[1]}",
            fix="give both inputs the same columns as key",
        )
    return list(keys[0])
