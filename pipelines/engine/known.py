"""What a trial of an app is told about the world outside its process. It needs no broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """`avro`: result -> the Avro schema that its consumers have. `upstream`: source -> the columns of the other app's result
    that it reads, Spark DDL.

    `records`: static table -> a Parquet file of all records of its topic, in Kafka's columns; the trial writes the file of
    the table beside it, as `table_beside` says. A table that is not named is empty. `table_max_bytes`: the largest file of
    a table that may be.
    """

    avro: Mapping[str, str] = field(default_factory=dict)
    upstream: Mapping[str, str] = field(default_factory=dict)
    records: Mapping[str, str] = field(default_factory=dict)
    table_max_bytes: int = 0


def table_beside(records: str) -> str:
    """The path of the table that a trial makes of the file `records`."""
    return f"{records}.table"
