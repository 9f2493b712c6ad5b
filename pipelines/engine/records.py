"""The records that a batch writes: those of its results, and the dead letters of what can't be one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.metrics import DeadLetter
from pipelines.engine.writer import Headers, Record
from pipelines.errors import SwitchyardError
from pipelines.model.names import REPLAY, SOURCE
from pipelines.model.reset import Replays

_REPLAYED = (REPLAY, b"true")
# letters of a key in an error
_SHOWN = 200

# key, value and headers of a record for the topic of dead letters
Letter = tuple[bytes | None, bytes | None, Headers]


class RowTooLarge(SwitchyardError):
    """A row of a result is larger than a record of Kafka may be. A table would silently keep its earlier row."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """A record that is too large to send. `topic`: where it was to go."""

    topic: str
    record: Record
    reason: str


def by_topic(rows: pa.Table, results: Mapping[str, str]) -> Iterator[tuple[str, pa.Table]]:
    """The topic of each result, with its part of a batch's rows. `results`: as in `Destination`."""
    for result, topic in results.items():
        yield topic, rows.filter(pc.equal(rows["result"], result)) if result else rows


def records(rows: pa.Table, replays: Replays, replayed: Literal["all", "some", "none"]) -> Iterator[Record]:
    """A record for each row: columns `key`, `value` and `source`, as `results.serialized` returns them.

    Headers name the source record, if the row does, and mark a replay. `replayed`: how much of the batch's input is one.
    """
    unnamed: Headers | None = [_REPLAYED] if replayed == "all" else None
    for batch in rows.to_batches(max_chunksize=50_000):
        keys, values, sources = (batch.column(name).to_pylist() for name in ("key", "value", "source"))
        for key, value, source in zip(keys, values, sources, strict=True):
            if source is None:
                yield key, value, unnamed
                continue
            again = replayed == "all" or (replayed == "some" and replays.record(source))
            # one list for each record: this loop runs for each result
            named = (SOURCE, source.encode())
            yield key, value, [named, _REPLAYED] if again else [named]


def dead_letters(
    batch_id: int, malformed: Iterable[DeadLetter], unsent: Iterable[Unsent], replays: Replays
) -> Iterator[Letter]:
    """The dead letters of a batch: its malformed records as they came, then its rows that are too large, without value."""
    for letter in malformed:
        again = replays.record(f"{letter.topic}:{letter.partition}:{letter.offset}")
        yield letter.key, letter.value, _marked(letter.headers, again)
    for each in unsent:
        key, value, given = each.record
        headers = [
            ("topic", each.topic.encode()),
            ("reason", each.reason.encode()),
            ("batch", str(batch_id).encode()),
            ("value-bytes", str(_size(value)).encode()),
        ]
        if (source := _source(given)) is not None:
            headers.append((SOURCE, source))
        yield (key or "").encode(), None, _marked(headers, _REPLAYED in (given or ()))


def too_large(release: str, batch_id: int, unsent: Unsent) -> RowTooLarge:
    """The error that stops a release because of an oversized row, if its app does not make them dead letters."""
    key, value, headers = unsent.record
    source = _source(headers)
    comes = f" from {source.decode()}" if source is not None else ""
    return RowTooLarge(
        f"{release}: batch {batch_id} has a row for {unsent.topic}{comes}, with the key {(key or 'null')[:_SHOWN]}, "
        f"whose value has {_size(value):,} bytes: {unsent.reason}",
        fix="make the row smaller in a new version, or let such rows become dead letters: @app(oversized='dead-letter'); "
        f"`switchyard bisect {release}` finds the record that the row comes from",
    )


def _size(value: str | bytes | None) -> int:
    return len(value.encode() if isinstance(value, str) else value or b"")


def _source(headers: Headers | None) -> bytes | None:
    """The source record that a row names."""
    return next((each for name, each in headers or () if name == SOURCE and isinstance(each, bytes)), None)


def _marked(headers: Sequence[tuple[str, bytes]], again: bool) -> Headers:
    """`headers`, plus that of a replay if `again`."""
    return [*headers, _REPLAYED] if again else [*headers]
