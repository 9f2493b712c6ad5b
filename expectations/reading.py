"""Reads a fixed range of a result into rows. Loads no Great Expectations, so that it can read while that loads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.storagelevel import StorageLevel

from expectations.result import SOURCE_HEADER, decode_stream, decode_table, decode_with_source, fold
from expectations.verdict import GateRequest
from pipelines.engine.avro import as_json
from pipelines.engine.expressions import MANY_RECORDS
from pipelines.engine.frames import read_range
from pipelines.errors import BadUsage
from pipelines.kafka.client import consumer
from pipelines.kafka.failures import failure
from pipelines.kafka.records import read_records
from pipelines.settings import Settings

# a broker may be restarting
_PATIENCE = 3
# of records that this process holds in memory, and sends to the JVM at once
_FEW_BYTES = 16 * 2**20
_SMALL = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("source", pa.binary())])

Raw = tuple[bytes | None, bytes | None, bytes | None]


def read_rows(spark: SparkSession, request: GateRequest) -> DataFrame:
    """The final rows of the range, kept by Spark, because each expectation is a query. Whoever is done unpersists them;
    those of a small range go with the last reference to them.

    A small range is read by this process and becomes one partition: no query then moves rows between tasks. Spark would
    need longer to load its Kafka source than to check the rows. Raises SwitchyardError if the range can't be read.
    """
    schema = _schema(request.schema_ddl)
    messages = _few(request)
    if messages is not None:
        return _rows_of(spark, messages, schema, request).coalesce(1).localCheckpoint()
    records = _decoded(
        read_range(spark, request.settings.on_this_machine(), request.topic, request.start, request.end), request
    )
    rows = (
        decode_table(fold(records), schema, request.key)
        if request.table
        else decode_stream(records, schema, request.key)
    )
    return rows.persist(StorageLevel.MEMORY_AND_DISK)


def _schema(ddl: str) -> StructType:
    schema = StructType.fromDDL(ddl)
    if not isinstance(schema, StructType):
        raise BadUsage(
            f"the result's schema is one type, not columns: {ddl}", fix="write it as in 'word string, count bigint'"
        )
    return schema


def _decoded(records: DataFrame, request: GateRequest) -> DataFrame:
    return records if request.avro is None else records.withColumn("value", as_json(F.col("value"), request.avro))


def _rows_of(spark: SparkSession, messages: Iterable[Message], schema: StructType, request: GateRequest) -> DataFrame:
    records = last_values(messages) if request.table else with_sources(messages)
    columns = zip(*records, strict=True) if records else ((), (), ())
    table = pa.table([pa.array(c, type=f.type) for c, f in zip(columns, _SMALL, strict=True)], schema=_SMALL)
    decode = decode_table if request.table else decode_with_source
    return decode(_decoded(spark.createDataFrame(table), request), schema, request.key)


def last_values(messages: Iterable[Message]) -> list[Raw]:
    """What `fold` makes of a table's records; `messages`: those of a partition in order. Their source has no meaning."""
    last = {(message.partition(), message.key()): message.value() for message in messages}
    return [(key, value, None) for (_, key), value in last.items() if value is not None]


def with_sources(messages: Iterable[Message]) -> list[Raw]:
    """A stream's records, each with its first header `source`."""
    return [(message.key(), message.value(), _source(message)) for message in messages]


def _source(message: Message) -> bytes | None:
    headers: Sequence[tuple[str, bytes | None]] = message.headers() or ()  # type: ignore[assignment]
    return next((value for name, value in headers if name == SOURCE_HEADER), None)


def _few(request: GateRequest) -> list[Message] | None:
    """The committed records of the range, if they are few; None: Spark has to read them."""
    wanted = {p: end - request.start.get(p, 0) for p, end in request.end.items() if end > request.start.get(p, 0)}
    if not wanted:
        return []
    return _messages(request.settings, request) if sum(wanted.values()) < MANY_RECORDS else None


def _messages(settings: Settings, request: GateRequest) -> list[Message] | None:
    """None if they are large, or if Spark has to say that some of them are deleted."""
    found: list[Message] = []
    size = 0
    timeout_s = _PATIENCE * settings.request_timeout_s
    with closing(consumer(settings, enable_partition_eof=True, fetch_wait_max_ms=20)) as client:
        try:
            for messages in read_records(
                client, request.topic, request.start, request.end, timeout_s, lambda: None, {}
            ):
                found += messages
                # the length of a message is that of its value
                size += sum(len(message) + len(message.key() or b"") for message in messages)
                if size > _FEW_BYTES:
                    return None
        except KafkaException as error:
            if error.args[0].code() == KafkaError._AUTO_OFFSET_RESET:
                return None
            raise failure(settings, error.args[0], topic=request.topic) from error
    return found
