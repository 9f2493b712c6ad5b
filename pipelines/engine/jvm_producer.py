"""A driver's transactional producer, which is in its JVM. Spark's tasks send a batch's rows through it, without Python."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from confluent_kafka import KafkaError, KafkaException
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from pipelines.engine.jvm.classes import java_class
from pipelines.engine.records import Unsent, refusal
from pipelines.engine.spark_conf import kafka_properties
from pipelines.engine.writer import WRITE_SHARE, Headers
from pipelines.kafka.client import MAX_RECORD_BYTES
from pipelines.model.reset import Replays
from pipelines.settings import Settings

_PRODUCER = "io.switchyard.TransactionalProducer"
_BATCH = "org.apache.spark.sql.switchyard.BatchRecords"
# how much is framed before the JVM gets it: a call takes far longer than framing a record
_FRAMES_BYTES = 1 << 20
# large batches of a partition compress better, and need fewer requests
_BATCH_BYTES = 256 << 10
_LINGER_MS = 5
_numbers = itertools.count(1)
Answer = TypeVar("Answer")


class BatchRecords:
    """The records of a batch, which has been executed once. Spark keeps them until `close`."""

    def __init__(self, records: DataFrame) -> None:
        """Executes the batch. `records`: as `results.serialized` returns them."""
        self.java: Any = java_class(_BATCH).execute(records._jdf)
        self.rows = int(self.java.rows())

    def close(self) -> None:
        self.java.close()


class JvmProducer:
    """A producer of Kafka's Java client, as `Transactional` in `writer.py` says. Needs a JVM in this process."""

    def __init__(self, settings: Settings, release: str) -> None:
        self._group = release
        self._frames = bytearray()
        request_ms = int(settings.request_timeout_s * 1000)
        write_ms = int(WRITE_SHARE * settings.transaction_timeout_s * 1000)
        properties = {
            **kafka_properties(settings),
            # the JVM complains of two clients with one name, and a producer that was given up may still be ending
            "client.id": f"{release}-{next(_numbers)}",
            "transactional.id": release,
            "transaction.timeout.ms": str(int(settings.transaction_timeout_s * 1000)),
            "max.block.ms": str(request_ms),
            "delivery.timeout.ms": str(write_ms),
            # a request of a slow link may take long. Without any acknowledgment the writer gives up sooner
            "request.timeout.ms": str(min(3 * request_ms, write_ms - _LINGER_MS)),
            "linger.ms": str(_LINGER_MS),
            "batch.size": str(_BATCH_BYTES),
            "compression.type": "lz4",
            # this class measures records itself: an error of the client's would end the transaction
            "max.request.size": str(2 * MAX_RECORD_BYTES),
            "reconnect.backoff.ms": "20",
            "reconnect.backoff.max.ms": "1000",
        }
        self._java = _asked(lambda: java_class(_PRODUCER)(properties, MAX_RECORD_BYTES))

    def __len__(self) -> int:
        self._hand_over()
        return int(self._java.left())

    def init_transactions(self, timeout_s: float) -> None:
        _asked(lambda: self._java.init(int(timeout_s * 1000)))

    def begin_transaction(self) -> None:
        self._frames.clear()
        _asked(self._java.begin)

    def poll(self, timeout_s: float) -> None:
        """Nothing to do: the JVM has threads for it."""

    def produce(
        self, topic: str, value: str | bytes | None, key: str | bytes | None, headers: Headers | None = None, partition: int = -1
    ) -> None:  # fmt: skip
        """Queues one record, of the few that are no rows. Raises KafkaException if it is too large."""
        if (reason := refusal(key, value, headers)) is not None:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, reason))
        self._frames += _framed(topic, partition, key, value, headers or ())
        if len(self._frames) >= _FRAMES_BYTES:
            self._hand_over()

    def write(
        self,
        records: BatchRecords,
        topics: Mapping[str, str],
        replays: Replays,
        replayed: Literal["all", "some", "none"],
        in_turn: bool,
        timeout_s: float,
    ) -> list[Unsent]:
        """Queues the rows of a batch, as `BatchWriter.write` says."""
        to = {
            "topics": dict(topics),
            "replayed": replayed,
            "processed": replays.by_topic() if replayed == "some" else {},
        }
        timeout_ms = max(0, int(timeout_s * 1000))
        refused = _asked(lambda: records.java.send(self._java, json.dumps(to), in_turn, timeout_ms))
        return [
            Unsent(each.topic(), each.key(), each.valueBytes(), each.source(), again=each.replay()) for each in refused
        ]

    def flush(self, timeout_s: float) -> int:
        """Waits until all records are acknowledged. Returns how many are not."""
        self._hand_over()
        return int(_asked(lambda: self._java.awaitAll(int(timeout_s * 1000))))

    def send_offsets(self, offsets: Mapping[str, Mapping[int, int]], note: str) -> None:
        """Adds the group's offsets (topic -> partition -> offset) to the transaction. `note`: kept with each of them."""
        lines = "\n".join(f"{topic} {p} {offset}" for topic, found in offsets.items() for p, offset in found.items())
        # confluent_kafka writes a zero at the end of a note, and reads as far as the next one
        _asked(lambda: self._java.sendOffsets(self._group, lines, f"{note}\0"))

    def commit_transaction(self, timeout_s: float) -> None:
        frames = bytes(self._frames)
        self._frames.clear()
        _asked(lambda: self._java.commit(frames, int(timeout_s * 1000)))

    def abort_transaction(self, timeout_s: float) -> None:
        """Aborts. `timeout_s`: the client has its own."""
        self._frames.clear()
        _asked(self._java.abort)

    def close(self) -> None:
        """Ends this producer at once; what is not acknowledged fails. Can be called from any thread."""
        self._java.close()

    def _hand_over(self) -> None:
        if self._frames:
            frames = bytes(self._frames)
            self._frames.clear()
            _asked(lambda: self._java.sendFramed(frames))


def _asked(call: Callable[[], Answer]) -> Answer:
    """What the JVM answers. Raises KafkaException for an error of Kafka's client there."""
    try:
        return call()
    except Py4JJavaError as error:
        found = error.java_exception
        if found.getClass().getName() != "io.switchyard.Failed":
            raise
        reason = KafkaError(
            found.code(), found.getMessage(), retriable=found.retriable(), txn_requires_abort=found.notCommitted()
        )
        raise KafkaException(reason) from error


def _framed(
    topic: str,
    partition: int,
    key: str | bytes | None,
    value: str | bytes | None,
    headers: Sequence[tuple[str, str | bytes | None]],
) -> bytes:
    """A record for `TransactionalProducer.sendFramed`: texts and bytes, each after its length, which is -1 for null."""
    parts = [_sized(topic), struct.pack(">i", partition), _sized(key), _sized(value), struct.pack(">i", len(headers))]
    for name, content in headers:
        parts += _sized(name), _sized(content)
    return b"".join(parts)


def _sized(part: str | bytes | None) -> bytes:
    if part is None:
        return struct.pack(">i", -1)
    found = part.encode() if isinstance(part, str) else part
    return struct.pack(">i", len(found)) + found
