"""Reads results into DuckDB, which keeps them on disk when they are larger than its memory."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from confluent_kafka import Message

from orchestration.operations.comparing.records import read_records
from pipelines.errors import SwitchyardError
from pipelines.kafka.client import consumer
from pipelines.kafka.offsets import first_of
from pipelines.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

# records that DuckDB gets at once: fewer cost more calls, more only take memory
_AT_ONCE = 50_000


@contextmanager
def database(spill: Path, memory_mb: int) -> Iterator[DuckDBPyConnection]:
    """An empty database in memory, which takes up to `memory_mb` MiB. `spill`: a folder for what doesn't fit; it is
    deleted in the end.

    Raises SwitchyardError if the memory or the disk is full.
    """
    import duckdb

    options: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_mb}MiB",
        "temp_directory": str(spill),
        # no order is promised, and to keep one takes memory
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    try:
        with closing(duckdb.connect(":memory:", config=options)) as found:
            yield found
    except duckdb.OutOfMemoryException as error:
        raise SwitchyardError(
            f"{memory_mb} MiB of memory are too few to compare the results",
            fix="raise SWITCHYARD_DIFF_MEMORY_MB, then repeat the command",
        ) from error
    except duckdb.IOException as error:
        raise SwitchyardError(
            f"the results can't be compared: {str(error).splitlines()[0]}",
            fix=f"free some disk space at {spill.parent}",
        ) from error
    finally:
        rmtree(spill, ignore_errors=True)


def load(
    database: DuckDBPyConnection,
    table: str,
    settings: Settings,
    topic: str,
    upto: Mapping[int, int],
    avro: str | None = None,
) -> None:
    """Makes `table` of a topic's committed records up to an offset of each partition, exclusive: `key string,
    value string, source string, place bigint`. The values of one key in a partition have rising places.

    `avro`: the schema of the values, which become JSON; None: they are JSON. Raises SwitchyardError if records before
    `upto` are deleted.
    """
    _refuse_deleted(settings, topic, upto)
    database.execute(f"CREATE TABLE {table} (key VARCHAR, value VARCHAR, source VARCHAR, place BIGINT)")
    decode = _plain if avro is None else _decoder(avro)
    with closing(consumer(settings, enable_partition_eof=True, fetch_wait_max_ms=20)) as client:
        waiting: list[Message] = []
        for messages in read_records(client, topic, {}, upto, settings.request_timeout_s, lambda: None, {}):
            waiting += messages
            if len(waiting) >= _AT_ONCE:
                _insert(database, table, waiting, decode)
                waiting = []
        _insert(database, table, waiting, decode)


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


def _insert(
    database: DuckDBPyConnection, table: str, messages: Sequence[Message], decode: Callable[[Message], bytes | None]
) -> None:
    if not messages:
        return
    import pyarrow as pa

    columns = {
        "key": _strings([_key(message) for message in messages]),
        "value": _strings([decode(message) for message in messages]),
        "source": _strings([_source(message) for message in messages]),
        "place": _integers([message.offset() or 0 for message in messages]),
    }
    database.register("batch", pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))
    database.execute(f"INSERT INTO {table} SELECT key, value, source, place FROM batch")
    database.unregister("batch")


def _key(message: Message) -> bytes | None:
    return _text(message.key())


def _plain(message: Message) -> bytes | None:
    return _text(message.value())


def _source(message: Message) -> bytes | None:
    headers: dict[str, Any] = dict(message.headers() or ())
    return _text(headers.get("source"))


def _text(data: bytes | None) -> bytes | None:
    """The same as UTF-8; what is not UTF-8 is replaced, as everywhere in Java."""
    return data if data is None or data.isascii() else data.decode(errors="replace").encode()


def _decoder(schema: str) -> Callable[[Message], bytes | None]:
    import io

    from fastavro import schemaless_reader
    from fastavro.schema import parse_schema

    parsed = parse_schema(json.loads(schema))

    def decode(message: Message) -> bytes | None:
        value = message.value()
        if value is None:
            return None
        return json.dumps(schemaless_reader(io.BytesIO(value), parsed, None), default=_as_text).encode()

    return decode


def _as_text(value: object) -> str:
    """What JSON has no type for: bytes, and Avro's dates, times and decimals."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _strings(values: Sequence[bytes | None]) -> pa.LargeStringArray:
    # not pa.array, which loads pandas and takes a second
    import pyarrow as pa

    data = [value or b"" for value in values]
    offsets = array("q", [0, *accumulate(map(len, data))])
    return pa.LargeStringArray.from_buffers(
        len(data), pa.py_buffer(offsets), pa.py_buffer(b"".join(data)), _validity(values)
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
