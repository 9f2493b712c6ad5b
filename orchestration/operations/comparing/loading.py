"""Reads the records of a result into a database."""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Message

from orchestration.operations.comparing.database import Check
from pipelines.errors import SwitchyardError
from pipelines.kafka.client import consumer
from pipelines.kafka.offsets import first_of
from pipelines.kafka.records import read_records
from pipelines.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

# what the database gets at once, whichever comes first: less costs more calls, more only takes memory
_RECORDS_AT_ONCE = 50_000
_BYTES_AT_ONCE = 16 * 2**20
# the database keeps short values on disk as it needs to; of long ones, it has 2,048 in memory at once
_LONG_BYTES = 1_024
# a broker may be restarting
_PATIENCE = 3

Decode = Callable[[Message], bytes | None]


def load(
    data: DuckDBPyConnection,
    table: str,
    settings: Settings,
    topic: str,
    upto: Mapping[int, int],
    check: Check,
    avro: str | None = None,
) -> int:
    """Makes `table` of a topic's committed records up to an offset of each partition, exclusive: `key string,
    value string, source string, place bigint`. The values of one key in a partition have rising places. Returns how many
    bytes the long values have together.

    `check`: called now and then; what it raises ends the reading. `avro`: the schema of the values, which become JSON;
    None: they are JSON. Raises SwitchyardError if records before `upto` are deleted or can't be read.
    """
    _refuse_deleted(settings, topic, upto)
    data.execute(f"CREATE OR REPLACE TABLE {table} (key VARCHAR, value VARCHAR, source VARCHAR, place BIGINT)")
    decode = _as_it_is if avro is None else _decoder(avro)
    long_bytes = waiting_bytes = 0
    waiting: list[Message] = []
    with closing(consumer(settings, enable_partition_eof=True, fetch_wait_max_ms=20)) as client:
        try:
            for messages in read_records(client, topic, {}, upto, _PATIENCE * settings.request_timeout_s, check, {}):
                waiting += messages
                waiting_bytes += sum(map(len, messages))
                if len(waiting) >= _RECORDS_AT_ONCE or waiting_bytes >= _BYTES_AT_ONCE:
                    long_bytes += _insert(data, table, waiting, decode)
                    waiting, waiting_bytes = [], 0
        except KafkaException as error:
            if error.args[0].code() == KafkaError._AUTO_OFFSET_RESET:
                # deleted since the first look
                _refuse_deleted(settings, topic, upto)
            raise
    return long_bytes + _insert(data, table, waiting, decode)


def _refuse_deleted(settings: Settings, topic: str, upto: Mapping[int, int]) -> None:
    wanted = [partition for partition, end in upto.items() if end]
    if not wanted:
        return
    first = first_of(settings, {topic: max(wanted) + 1})[topic]
    if gone := [p for p in wanted if first[p]]:
        told = ", ".join(f"{topic}[{p}] before offset {first[p]}" for p in sorted(gone))
        raise SwitchyardError(
            f"the result can't be compared, because records are deleted: {told}",
            fix="`switchyard status` tells how to make the result again",
        )


def _insert(data: DuckDBPyConnection, table: str, messages: Sequence[Message], decode: Decode) -> int:
    """Returns how many bytes the long values have together."""
    if not messages:
        return 0
    import pyarrow as pa

    values = [decode(message) for message in messages]
    columns = {
        "key": _strings([_text(message.key()) for message in messages]),
        "value": _strings(values),
        "source": _strings([_source(message) for message in messages]),
        "place": _integers([message.offset() or 0 for message in messages]),
    }
    data.register("batch", pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))
    data.execute(f"INSERT INTO {table} SELECT key, value, source, place FROM batch")
    data.unregister("batch")
    return sum(len(value) for value in values if value is not None and len(value) > _LONG_BYTES)


def _as_it_is(message: Message) -> bytes | None:
    return _text(message.value())


def _source(message: Message) -> bytes | None:
    # the first one, as everywhere
    headers: Any = message.headers() or ()
    return _text(next((value for name, value in headers if name == "source"), None))


def _text(content: bytes | None) -> bytes | None:
    """The same as UTF-8. What is not UTF-8 is replaced, as in Java."""
    return content if content is None or content.isascii() else content.decode(errors="replace").encode()


def _decoder(schema: str) -> Decode:
    from fastavro import schemaless_reader
    from fastavro.schema import parse_schema

    parsed = parse_schema(_without_times(json.loads(schema)))

    def decode(message: Message) -> bytes | None:
        value = message.value()
        if value is None:
            return None
        try:
            return json.dumps(schemaless_reader(io.BytesIO(value), parsed, None), default=_as_text).encode()
        # fastavro raises whatever comes, EOFError and IndexError too
        except Exception as error:
            raise SwitchyardError(
                f"{message.topic()}[{message.partition()}] {message.offset()} is not Avro of its schema: {error}",
                fix="`switchyard status` tells how to make the result again",
            ) from error

    return decode


def _without_times(schema: Any) -> Any:
    """A schema whose dates, times and UUIDs are the numbers and texts that are stored: Python's types know fewer of them."""
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _without_times(part) for name, part in schema.items() if name not in ("default", "doc")}
    return kept if kept.get("logicalType") == "decimal" else {n: p for n, p in kept.items() if n != "logicalType"}


def _as_text(value: object) -> str:
    """What JSON has no type for: bytes and decimals."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _strings(values: Sequence[bytes | None]) -> pa.LargeStringArray:
    # not pa.array, which loads pandas and takes a second
    import pyarrow as pa

    present = [value or b"" for value in values]
    offsets = array("q", [0, *accumulate(map(len, present))])
    return pa.LargeStringArray.from_buffers(
        len(present), pa.py_buffer(offsets), pa.py_buffer(b"".join(present)), _validity(values)
    )


def _validity(values: Sequence[bytes | None]) -> pa.Buffer | None:
    """A bit for each value that is not null, the lowest first; None if none is null."""
    if None not in values:
        return None
    import pyarrow as pa

    bits = bytearray((len(values) + 7) // 8)
    for place, value in enumerate(values):
        if value is not None:
            bits[place // 8] |= 1 << place % 8
    return pa.py_buffer(bytes(bits))


def _integers(values: Sequence[int]) -> pa.Int64Array:
    import pyarrow as pa

    return pa.Int64Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(array("q", values))])
