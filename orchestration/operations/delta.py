"""The delta of a switch: what takes a consumer of a table from the one result to the other, as a topic."""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from orchestration.operations.evidence import evidence_path
from pipelines.errors import SwitchyardError
from pipelines.kafka.client import admin, consumer, drain, producer
from pipelines.kafka.offsets import end_of
from pipelines.kafka.topics import APPEND_ONLY, ensure_topic
from pipelines.model.names import delta_topic
from pipelines.model.positions import ResultPosition
from pipelines.model.registry import DeltaSegment, EvidenceRecorded
from pipelines.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

Changes = Iterator[tuple[str, str | None]]


class DeltaTopic:
    """The topic of an evidence's deltas: one partition, one transaction for each segment. `connect` takes 65-500 ms."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._admin = admin(settings)
        self._producer: Producer | None = None

    def connect(self) -> Producer:
        """The producer; an earlier one of this topic, of an operator that is gone, is fenced."""
        if self._producer is None:
            client = producer(self._settings, transactional_id=self._topic, transaction_timeout_ms=300_000)
            client.init_transactions(self._settings.request_timeout_s)
            self._producer = client
        return self._producer

    def append(self, changes: Iterable[tuple[str, str | None]]) -> DeltaSegment:
        """Appends (key, value or None for a tombstone) records in one transaction; returns their range."""
        client = self.connect()
        start = end_of(self._settings, self._topic, 1, committed=False, client=self._admin)[0]
        client.begin_transaction()
        for key, value in changes:
            while True:
                try:
                    client.produce(self._topic, value, key, partition=0)
                    break
                except BufferError:
                    client.poll(0.1)
        if client.flush(self._settings.request_timeout_s * 6):
            raise SwitchyardError(
                f"delta topic {self._topic} could not be written in time", fix="see the broker's log, then try again"
            )
        end = end_of(self._settings, self._topic, 1, committed=False, client=self._admin)[0]
        client.commit_transaction(self._settings.request_timeout_s)
        return DeltaSegment(topic=self._topic, start=start, end=end)


def write_delta(settings: Settings, app: str, evidence: str, path: Path) -> tuple[DeltaSegment, DeltaSegment]:
    """The delta topic of an evidence: what takes a table from live to new (forward) and back (backward)."""
    topic = delta_topic(app, evidence)
    ensure_topic(settings, topic, 1, APPEND_ONLY)
    writer = DeltaTopic(settings, topic)
    forward = writer.append(((k, new) for k, live, new in _differing(path)))
    backward = writer.append(((k, live) for k, live, new in _differing(path)))
    return forward, backward


def _differing(fold: Path) -> Iterator[tuple[str, str | None, str | None]]:
    """Key, live value and new value where they differ."""
    for batch in _batches(fold):
        for key, live, new in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if live != new:
                yield key, live, new


def _batches(fold: Path) -> Iterator[pa.RecordBatch]:
    # not pyarrow.dataset: that loads pandas, which takes a second
    import pyarrow.parquet as pq

    for path in sorted(fold.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(columns=["key", "live_value", "new_value"])


def read_changes(
    client: Consumer, topic: str, start: Mapping[int, int], end: Mapping[int, int], timeout_s: float
) -> dict[str, str | None]:
    """Key -> last value (None: deleted) of the committed records of a result topic in [start, end).

    `client` is assigned to it. Raises SwitchyardError if nothing comes for `timeout_s`.
    """
    wanted = {p: o for p, o in end.items() if o > start.get(p, 0)}
    found: dict[str, str | None] = {}
    client.assign([TopicPartition(topic, p, start.get(p, 0)) for p in wanted])
    while wanted:
        messages = drain(client, timeout_s)
        if not messages:
            raise SwitchyardError(
                f"{topic} could not be read up to {dict(end)}", fix="see the broker's log, then try again"
            )
        for message in messages:
            error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
            if message.topic() != topic or partition not in wanted:
                continue
            if error is None:
                if offset < wanted[partition]:
                    value = message.value()
                    found[(message.key() or b"").decode()] = None if value is None else value.decode()
                # the record before the end may be a control record, which is never shown
                if offset + 1 >= wanted[partition]:
                    del wanted[partition]
            elif error.code() == KafkaError._PARTITION_EOF:
                if offset >= wanted[partition]:
                    del wanted[partition]
            elif not error.retriable():
                raise KafkaException(error)
    client.unassign()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchUp:
    """Keys that either result touched since the evidence cut, with the old and new values at the switch cut."""

    values: dict[str, tuple[str | None, str | None]]

    @property
    def ratio(self) -> float:
        """Share of touched keys in which the results differ."""
        return sum(old != new for old, new in self.values.values()) / len(self.values) if self.values else 0.0

    def changes(self) -> Changes:
        """What a consumer is told: each touched key's new value; None where the new result doesn't have it."""
        return ((key, new) for key, (_, new) in self.values.items())


def touch_up(old: Mapping[str, str | None], new: Mapping[str, str | None], fold: Path, *, reverse: bool) -> TouchUp:
    """Brings an evidence up to date by the keys that `old` and `new` touched since (key -> last value).

    A key that only one side touched still has, on the other, the value of the evidence cut: it is looked up in the
    fold. `reverse`: the evidence's new release is the old one of this switch.
    """
    at_cut = _lookup(fold, (set(old) | set(new)) - (set(old) & set(new)))
    values: dict[str, tuple[str | None, str | None]] = {}
    for key in {**old, **new}:
        live, candidate = at_cut.get(key, (None, None))
        before, after = (candidate, live) if reverse else (live, candidate)
        values[key] = (old.get(key, before), new.get(key, after))
    return TouchUp(values=values)


class Delta:
    """The delta of one switch, to the release `to`: begun while the drivers meet, as consumers wait at its end.

    In advance it connects, reads what the results have so far and loads what a lookup needs; what fails in advance is
    done again when it is needed. Raises SwitchyardError if the evidence has no delta.
    """

    def __init__(self, settings: Settings, evidence: EvidenceRecorded, *, to: str) -> None:
        self._reverse = evidence.live == to
        base = evidence.backward if self._reverse else evidence.forward
        if base is None:
            raise SwitchyardError(f"evidence {evidence.id} has no delta", fix="run `switchyard diff` again")
        self.base = base
        self._settings = settings
        self._fold = evidence_path(settings, evidence.id)
        self._admin = admin(settings)
        self._topic = DeltaTopic(settings, base.topic)
        self._consumer = consumer(
            settings, auto_offset_reset="earliest", enable_partition_eof=True, fetch_wait_max_ms=20
        )
        since = evidence.live_result, evidence.new_result
        # result topic -> where reading goes on, and what was read up to there
        self._read: dict[str, tuple[dict[int, int], dict[str, str | None]]] = {}
        self._old_since, self._new_since = reversed(since) if self._reverse else since
        self._ahead = threading.Thread(target=self._prepare, name="delta", daemon=True)
        self._ahead.start()

    def touched(self, old_end: ResultPosition, new_end: ResultPosition) -> TouchUp:
        """What the keys are that either result touched between the evidence cut and its end."""
        self._ahead.join()
        old, new = self._changes(self._old_since, old_end), self._changes(self._new_since, new_end)
        return touch_up(old, new, self._fold, reverse=self._reverse)

    def write(self, touched: TouchUp) -> DeltaSegment:
        """Writes the touched keys; consumers get them before `base`, which they then take without those keys."""
        return self._topic.append(touched.changes())

    def _prepare(self) -> None:
        try:
            self._topic.connect()
            for since in (self._old_since, self._new_since):
                for topic, start in since.topics.items():
                    self._up_to(topic, start, end_of(self._settings, topic, len(start), client=self._admin))
            if len({frozenset(changes) for _, changes in self._read.values()}) > 1:
                # a key that one side alone touched is looked up in the fold
                import pyarrow.parquet  # noqa: F401
        except (KafkaException, SwitchyardError) as error:
            log.debug("the delta could not be begun in advance: %s", error)

    def _changes(self, since: ResultPosition, end: ResultPosition) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for topic, offsets in end.topics.items():
            found |= self._up_to(topic, since.of(topic), offsets)
        return found

    def _up_to(self, topic: str, since: Mapping[int, int], end: Mapping[int, int]) -> dict[str, str | None]:
        start, found = self._read.get(topic, (dict(since), {}))
        if any(offset > end.get(p, 0) for p, offset in start.items()):
            # an operation that was left and is resumed: the results have gone on behind the barrier
            start, found = dict(since), {}
        found = found | read_changes(self._consumer, topic, start, end, self._settings.request_timeout_s)
        self._read[topic] = {**start, **end}, found
        return found


def _lookup(fold: Path, keys: set[str]) -> dict[str, tuple[str | None, str | None]]:
    if not keys:
        return {}
    if not fold.exists():
        raise SwitchyardError(f"the evidence {fold} is gone", fix="run `switchyard diff` again")
    import pyarrow.compute as pc

    wanted = _strings(keys)
    found: dict[str, tuple[str | None, str | None]] = {}
    for batch in _batches(fold):
        rows = batch.filter(pc.is_in(batch.column("key"), value_set=wanted))
        for key, live, new in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            found[key] = live, new
    return found


def _strings(values: Iterable[str]) -> pa.StringArray:
    # not pa.array: that loads pandas, which takes a second
    import pyarrow as pa

    data = [value.encode() for value in values]
    offsets = array("i", [0, *accumulate(map(len, data))])
    return pa.StringArray.from_buffers(len(data), pa.py_buffer(offsets), pa.py_buffer(b"".join(data)))
