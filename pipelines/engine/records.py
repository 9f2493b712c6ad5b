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
from pipelines.kafka.client import MAX_RECORD_BYTES
from pipelines.model.names import REPLAY, SOURCE
from pipelines.model.reset import Replays

_REPLAYED = (REPLAY, b"true")
# letters of a key in an error, and in a header of a dead letter that can't have it
_SHOWN = 200
# what librdkafka adds to key, value and headers when it measures a record
_OVERHEAD_BYTES = 36
_TOO_LARGE = "Unable to produce message: Broker: Message size too large"

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


def refusal(key: str | bytes | None, value: str | bytes | None, headers: Headers | None) -> str | None:
    """Why the writer's producer would refuse a record, in its words; None: it would take it.

    The producer asks no broker: it adds up key, value, headers and an overhead, and compares that with
    `MAX_RECORD_BYTES`.
    """
    size = _OVERHEAD_BYTES + _size(key) + _size(value)
    for name, content in headers or ():
        lengths = _size(name), _size(content)
        size += sum(length + _varint_bytes(length) for length in lengths)
    return _TOO_LARGE if size > MAX_RECORD_BYTES else None


def dead_letters(
    batch_id: int, malformed: Iterable[DeadLetter], unsent: Iterable[Unsent], replays: Replays
) -> Iterator[Letter]:
    """The dead letters of a batch: its malformed records as they came, then its rows that are too large, without value.

    A letter that is too large is sent without its key. Of a row, the header `key-start` then has the first letters of it.
    """
    for letter in malformed:
        again = replays.record(f"{letter.topic}:{letter.partition}:{letter.offset}")
        yield letter.key, letter.value, _marked(letter.headers, again)
    for each in unsent:
        text, value, given = each.record
        key = (text or "").encode()
        headers = [
            ("topic", each.topic.encode()),
            ("reason", each.reason.encode()),
            ("batch", str(batch_id).encode()),
            ("value-bytes", str(_size(value)).encode()),
        ]
        if (source := _source(given)) is not None:
            headers.append((SOURCE, source))
        marked = _marked(headers, _REPLAYED in (given or ()))
        if refusal(key, None, marked) is not None:
            marked.append(("key-start", (text or "")[:_SHOWN].encode()))
        yield key, None, marked


def as_sent(letter: Letter) -> Letter:
    """A dead letter as `Writer.send_dead` sends it: if it is too large, without its value and, if necessary, its key."""
    key, value, headers = letter
    if value is not None and refusal(key, value, headers) is not None:
        headers, value = [*headers, ("value-bytes", str(_size(value)).encode())], None
    if key is not None and refusal(key, value, headers) is not None:
        headers, key = [*headers, ("key-bytes", str(_size(key)).encode())], None
    return key, value, headers


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


def _varint_bytes(length: int) -> int:
    """How many bytes Kafka writes for a length: seven bits in each, and one bit for the sign."""
    return max(1, -(-(length.bit_length() + 1) // 7))


def _source(headers: Headers | None) -> bytes | None:
    """The source record that a row names."""
    return next((each for name, each in headers or () if name == SOURCE and isinstance(each, bytes)), None)


def _marked(headers: Sequence[tuple[str, bytes]], again: bool) -> Headers:
    """`headers`, plus that of a replay if `again`."""
    return [*headers, _REPLAYED] if again else [*headers]
