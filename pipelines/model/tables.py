"""The DataFrame of a Changelog: what its columns say of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.errors import BadUsage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# metadata of the column `deleted`, which each table has: the names of the key's columns
TABLE_KEY = "switchyard.key"
_OF_A_RECORD = ("event_time", "topic", "partition", "offset", "deleted")


def key_of(frame: DataFrame, called: str) -> list[str]:
    """The names of the columns of a table's key. `called`: what an error calls `frame`. Raises BadUsage if it is no table."""
    fields = {field.name: field for field in frame.schema.fields}
    found = fields["deleted"].metadata.get(TABLE_KEY) if "deleted" in fields else None
    missing = [name for name in ("event_time", "partition", "offset") if name not in fields]
    if found is None or missing:
        raise BadUsage(
            f"{called} is not a table" + (f": it lacks {', '.join(missing)}" if found is not None else ""),
            fix="make the input a Changelog, and keep its columns deleted, event_time, partition and offset",
        )
    return list(found)


def value_columns(table: DataFrame, key: list[str], called: str) -> list[str]:
    """The names of the columns of a table's value. Raises BadUsage if there is none."""
    found = [name for name in table.columns if name not in {*key, *_OF_A_RECORD}]
    if not found:
        raise BadUsage(f"{called} has no column besides its key", fix="keep a column of its value")
    return found
