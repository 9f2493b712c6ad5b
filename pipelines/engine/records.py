"""The records that a batch writes: those of its results, and the dead letters of what can't be one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipelines.engine.metrics import DeadLetter
from pipelines.engine.writer import Headers
from pipelines.errors import SwitchyardError
from pipelines.kafka.client import MAX_RECORD_BYTES
from pipelines.model.names import REPLAY, SOURCE
from pipelines.model.reset import Replays

_REPLAYED = (REPLAY, b"true")
# letters of a key in an error, and in a header of a dead letter that can't have it
_SHOWN = 200
# what librdkafka adds to key, value and headers when it measures a record
_OVERHEAD_BYTES = 36
TOO_LARGE = f"too large for a record, which may have {MAX_RECORD_BYTES:,} bytes at most"

# key, value and headers of a record for the topic of dead letters
Letter = tuple[bytes | None, bytes | None, Headers]


class RowTooLarge(SwitchyardError):
    """A row of a result is larger than a record of Kafka may be. A table would silently keep its earlier row."""


@dataclass(frozen=True, slots=True)
class Unsent:
    """A row that is too large to send, without its value. `topic`: where it was to go. `source`: the record that it came
    from, if it names one. `again`: whether it is a replay.
    """

    topic: str
    key: bytes | None
    value_bytes: int
    source: str | None = None
    again: bool = False


def refusal(key: str | bytes | None, value: str | bytes | None, headers: Headers | None) -> str | None:
    """Why a record can't be sent; None: it can. Key, value, headers and an overhead are compared with `MAX_RECORD_BYTES`,
    as librdkafka measures a record. `BatchRecords.scala` does the same for rows.
    """
    size = _OVERHEAD_BYTES + _size(key) + _size(value)
    for name, content in headers or ():
        lengths = _size(name), _size(content)
        size += sum(length + _varint_bytes(length) for length in lengths)
    return TOO_LARGE if size > MAX_RECORD_BYTES else None


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
        key = each.key or b""
        headers = [
            ("topic", each.topic.encode()),
            ("reason", TOO_LARGE.encode()),
            ("batch", str(batch_id).encode()),
            ("value-bytes", str(each.value_bytes).encode()),
        ]
        if each.source is not None:
            headers.append((SOURCE, each.source.encode()))
        marked = _marked(headers, each.again)
        if refusal(key, None, marked) is not None:
            marked.append(("key-start", _start(key).encode()))
        yield key, None, marked


def as_sent(letter: Letter) -> Letter:
    """A dead letter as it is sent: if it is too large, without its value and, if necessary, its key. A header then gives
    their size in bytes. A letter that can't be written would make the batch fail each time.
    """
    key, value, headers = letter
    if value is not None and refusal(key, value, headers) is not None:
        headers, value = [*headers, ("value-bytes", str(_size(value)).encode())], None
    if key is not None and refusal(key, value, headers) is not None:
        headers, key = [*headers, ("key-bytes", str(_size(key)).encode())], None
    return key, value, headers


def too_large(release: str, batch_id: int, unsent: Unsent) -> RowTooLarge:
    """The error that stops a release because of an oversized row, if its app does not make them dead letters."""
    comes = f" from {unsent.source}" if unsent.source is not None else ""
    key = "null" if unsent.key is None else _start(unsent.key)
    return RowTooLarge(
        f"{release}: batch {batch_id} has a row for {unsent.topic}{comes}, with the key {key}, "
        f"whose value has {unsent.value_bytes:,} bytes: {TOO_LARGE}",
        fix="make the row smaller in a new version, or let such rows become dead letters: @app(oversized='dead-letter'); "
        f"`switchyard bisect {release}` finds the record that the row comes from",
    )


def _start(key: bytes) -> str:
    """The first letters of a key."""
    return key.decode(errors="replace")[:_SHOWN]


def _size(value: str | bytes | None) -> int:
    return len(value.encode() if isinstance(value, str) else value or b"")


def _varint_bytes(length: int) -> int:
    """How many bytes Kafka writes for a length: seven bits in each, and one bit for the sign."""
    return max(1, -(-(length.bit_length() + 1) // 7))


def _marked(headers: Sequence[tuple[str, bytes]], again: bool) -> Headers:
    """`headers`, plus that of a replay if `again`."""
    return [*headers, _REPLAYED] if again else [*headers]
