"""Records of a topic as Kafka's source of Spark gives them, without Spark: as rows of Arrow, and in a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyarrow.parquet import ParquetWriter

RAW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of an input topic. `time`: its timestamp, with a time zone."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    time: datetime


def as_arrow(records: Sequence[Record]) -> pa.Table:
    """Records as Kafka's columns."""
    columns = [[getattr(r, name) for r in records] for name in ("key", "value", "topic", "partition", "offset", "time")]
    return pa.table([pa.array(c, type=f.type) for c, f in zip(columns, RAW, strict=True)], schema=RAW)


def write_records(path: str, parts: Iterable[Sequence[Record]]) -> None:
    """Writes records into a Parquet file, part by part."""
    with ParquetWriter(path, RAW) as writer:
        for records in parts:
            writer.write_table(as_arrow(records))
