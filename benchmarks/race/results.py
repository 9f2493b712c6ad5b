"""What a result topic holds, whatever the order of its records and the way in which numbers are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
from confluent_kafka import Message
from pyarrow import json as arrow_json

from benchmarks.hydrating import read
from benchmarks.race.inputs import LAST
from benchmarks.race.queries import Query
from pipelines.settings import Settings

_CHUNK = 500_000


def digest(settings: Settings, query: Query, topic: str) -> dict[str, Any]:
    """`records`: how many the topic holds; `rows`: of these, the last ones of each key if the result is a table, or all,
    without those of the last visits; `digest`: the same for two topics exactly if their rows are the same but for rounded
    numbers; `sum`: of these.
    """
    records = rows = total = 0
    sum_ = 0.0
    if query.table:
        last: dict[bytes, bytes] = {}
        for messages in read(settings, [topic]):
            records += len(messages)
            last.update((message.key(), message.value()) for message in messages)
        chunks: Iterable[Sequence[tuple[bytes, bytes]]] = [list(last.items())]
    else:
        chunks = (
            [(message.key(), message.value()) for message in messages] for messages in _large(read(settings, [topic]))
        )
    for chunk in chunks:
        found = frame(query, chunk)
        rows += len(found)
        total += sum(hashes(query, found).tolist())
        sum_ += float(found[list(query.rounded)].sum().sum())
    return {"records": records or rows, "rows": rows, "digest": f"{total % 2**64:016x}", "sum": sum_}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two topics have the same rows; see `digest`. A rounded number may differ by one in its sixth decimal."""
    exact = (one["digest"], one["rows"]) == (other["digest"], other["rows"])
    return exact and abs(one["sum"] - other["sum"]) <= one["rows"] * 1e-6


def hashes(query: Query, rows: pd.DataFrame) -> pd.Series[Any]:
    """A hash of each row, without rounded numbers."""
    exact = [name for name in query.columns if name not in query.rounded]
    return pd.util.hash_pandas_object(rows[exact], index=False)


def frame(query: Query, records: Sequence[tuple[bytes, bytes]]) -> pd.DataFrame:
    """The rows of records whose keys and values are JSON; numbers as floats, however they are written. Raises ValueError
    for a field that the query doesn't have.
    """
    # one object from two: `{"a":1}` and `{"b":2}`
    lines = b"\n".join(key[:-1] + b"," + value[1:] for key, value in records)
    schema = pa.schema(
        [(name, pa.string() if kind == "STRING" else pa.float64()) for name, kind in query.columns.items()]
    )
    if not lines:
        return pd.DataFrame(schema.empty_table().to_pandas())
    table = arrow_json.read_json(
        pa.BufferReader(lines),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
    )
    rows = table.select(list(query.columns)).to_pandas()
    return rows[~rows[query.key[0]].str.startswith(LAST)]


def _large(batches: Iterable[list[Message]]) -> Iterator[list[Message]]:
    waiting: list[Message] = []
    for batch in batches:
        waiting += batch
        if len(waiting) >= _CHUNK:
            yield waiting
            waiting = []
    yield waiting
