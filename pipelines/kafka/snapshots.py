"""Snapshots of the registry, in a compacted topic of their own. A process writes one after it has folded many entries.

They only make a start faster. A snapshot that is missing or unreadable, or that comes from another version or another
log, is ignored, and the log is read from its start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from pipelines.errors import SwitchyardError
from pipelines.kafka.client import await_connection, producer
from pipelines.kafka.log import Record, read_tail
from pipelines.kafka.topics import SNAPSHOTS, ensure_topic, partition_count
from pipelines.model.entries import as_unread, read
from pipelines.model.names import SNAPSHOTS_TOPIC
from pipelines.model.parts import AnotherRegistry
from pipelines.model.registry import ImpossibleEntry, RegistryState, fold
from pipelines.model.snapshot import Snapshot, digest_of, newest_of, to_parts
from pipelines.settings import Settings

log = logging.getLogger(__name__)

# entries; folding this many takes some tenths of a second
EVERY = 4_000
# how many records to look back for a snapshot of this version: other versions may write theirs
_LOOK_BACK = (8, 64, 256)


def newest_snapshot(settings: Settings, end: int, *, client: AdminClient | None = None) -> Snapshot | None:
    """The newest snapshot of a registry that ends at offset `end`; None if there is none, or the log is short."""
    if end <= EVERY:
        return None
    try:
        if partition_count(settings, SNAPSHOTS_TOPIC, client=client) is None:
            return None
        for records in _LOOK_BACK:
            values = read_tail(settings, SNAPSHOTS_TOPIC, records)
            found = newest_of(values)
            if found is not None:
                return found if found.offset < end else None
            if len(values) < records:
                return None
    except (SwitchyardError, KafkaException) as error:
        log.info("no snapshot of the registry can be read, so the whole log is read: %s", error)
    return None


def write_snapshot(settings: Settings, snapshot: Snapshot, *, client: AdminClient | None = None) -> bool:
    """Writes a snapshot, unless there is a newer one. Returns whether it did.

    Errors are logged only, as nothing depends on it.
    """
    try:
        ensure_topic(settings, SNAPSHOTS_TOPIC, 1, SNAPSHOTS, client=client)
        newest = newest_of(read_tail(settings, SNAPSHOTS_TOPIC, _LOOK_BACK[0]))
        if newest is not None and snapshot.offset - EVERY < newest.offset <= snapshot.offset:
            return False
        # if two processes write at the same time, one of them is fenced; either snapshot will do
        writer = producer(settings, transactional_id=SNAPSHOTS_TOPIC, transaction_timeout_ms=30_000, linger_ms=0)
        await_connection(writer, SNAPSHOTS_TOPIC)
        writer.init_transactions(settings.request_timeout_s)
        writer.begin_transaction()
        for key, value in to_parts(snapshot).items():
            writer.produce(SNAPSHOTS_TOPIC, value, key, partition=0)
        writer.commit_transaction(settings.request_timeout_s)
        return True
    except (SwitchyardError, KafkaException) as error:
        log.info("no snapshot of the registry could be written: %s", error)
        return False


class Folding:
    """The registry's state, folded from records in order, from the newest snapshot or from the log's start."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._begin(snapshot)

    def _begin(self, snapshot: Snapshot | None) -> None:
        self._unproven = snapshot
        self.state = snapshot.state if snapshot else RegistryState()
        self.start = snapshot.offset if snapshot else 0
        # entries folded since the newest known snapshot
        self.since = 0
        self._last: tuple[int, str] | None = None

    @property
    def proven(self) -> bool:
        """Whether the snapshot is known to come from this log."""
        return self._unproven is None

    @property
    def due(self) -> bool:
        """Whether enough was folded since the newest snapshot to be worth another."""
        return self.since > EVERY

    def take(self, records: Sequence[Record]) -> bool:
        """Folds new records. False: the snapshot comes from another log; read everything again, from offset 0.

        Raises AnotherRegistry for a record at or before the last one: an append-only log has none.
        """
        if not records:
            return True
        if self._last is not None and min(offset for offset, _ in records) <= self._last[0]:
            raise AnotherRegistry
        if self._unproven is not None:
            (offset, value), *records = records
            if (offset, digest_of(value)) != (self._unproven.offset, self._unproven.digest):
                log.warning("the newest snapshot comes from another registry: this registry is read from its start")
                self._begin(None)
                return False
            self._last = (self._unproven.offset, self._unproven.digest)
            self._unproven = None
        self.state = _folded(self.state, records)
        self.since += len(records)
        if records:
            self._last = (records[-1][0], digest_of(records[-1][1]))
        return True

    def snapshot(self) -> Snapshot | None:
        """The current state; None before the first entry."""
        if self._last is None:
            return None
        return Snapshot(state=self.state, offset=self._last[0], digest=self._last[1])


def _folded(state: RegistryState, records: Sequence[Record]) -> RegistryState:
    """The state after `records`. An entry that can be read but not folded counts as one that can't be read: it is skipped,
    or holds what it decides about.
    """
    try:
        return fold(state, [read(value, offset) for offset, value in records], strict=True)
    except Exception:
        for offset, value in records:
            try:
                state = fold(state, [read(value, offset)], strict=True)
            except ImpossibleEntry as error:
                log.warning("entry %d of the registry can't be folded: %s", offset, error)
                state = fold(state, [as_unread(value, offset, str(error))])
            except Exception as error:
                log.exception("entry %d of the registry can't be folded", offset)
                state = fold(state, [as_unread(value, offset, f"{type(error).__name__} while folding it")])
    return state
