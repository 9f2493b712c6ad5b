"""Snapshots of the registry: a compacted topic of its own, written by whoever has folded many entries past the newest one.

Nothing depends on them but how long a start takes: one that is missing, can't be read, or is of another version or another
log is ignored, and the log is read from its beginning.
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
from pipelines.model.names import SNAPSHOTS_TOPIC
from pipelines.model.parts import AnotherRegistry
from pipelines.model.registry import RegistryState, fold, read
from pipelines.model.snapshot import Snapshot, digest_of, newest_of, to_parts
from pipelines.model.unread import unread
from pipelines.settings import Settings

log = logging.getLogger(__name__)

# entries; folding so many takes some tenths of a second
EVERY = 4_000
# records looked back for one of this version: others may write theirs
_LOOK_BACK = (8, 64, 256)


def newest_snapshot(settings: Settings, end: int, *, client: AdminClient | None = None) -> Snapshot | None:
    """The newest snapshot of a registry that ends at offset `end`, if that is long enough to need one."""
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
        log.info("no snapshot of the registry can be read, so all of it is: %s", error)
    return None


def write_snapshot(settings: Settings, snapshot: Snapshot, *, client: AdminClient | None = None) -> bool:
    """Writes a snapshot, unless someone has written a newer one. Whether it did.

    Trouble is logged, as nothing depends on it.
    """
    try:
        ensure_topic(settings, SNAPSHOTS_TOPIC, 1, SNAPSHOTS, client=client)
        newest = newest_of(read_tail(settings, SNAPSHOTS_TOPIC, _LOOK_BACK[0]))
        if newest is not None and snapshot.offset - EVERY < newest.offset <= snapshot.offset:
            return False
        # whoever writes one at the same time is fenced, or fences this one: either will do
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
    """The registry's state as records come, in order, from the newest snapshot on or from the log's beginning."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._begin(snapshot)

    def _begin(self, snapshot: Snapshot | None) -> None:
        self._unproven = snapshot
        self.state = snapshot.state if snapshot else RegistryState()
        self.start = snapshot.offset if snapshot else 0
        # entries folded since the newest snapshot that is known
        self.since = 0
        self._last: tuple[int, str] | None = None

    @property
    def proven(self) -> bool:
        """Whether the snapshot has been found to be of this log."""
        return self._unproven is None

    @property
    def due(self) -> bool:
        """Whether so much was folded since the newest snapshot that another one is worth its while."""
        return self.since > EVERY

    def take(self, records: Sequence[Record]) -> bool:
        """Folds what has come. False: the snapshot is of another log, so that all has to be read, from offset 0.

        Raises AnotherRegistry for a record at or before the last one: a log that is only appended to has none.
        """
        if not records:
            return True
        if self._last is not None and min(offset for offset, _ in records) <= self._last[0]:
            raise AnotherRegistry
        if self._unproven is not None:
            (offset, value), *records = records
            if (offset, digest_of(value)) != (self._unproven.offset, self._unproven.digest):
                log.warning("the newest snapshot is of another registry: all of this one is read")
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
        """The state as it is now; None before the first entry."""
        if self._last is None:
            return None
        return Snapshot(state=self.state, offset=self._last[0], digest=self._last[1])


def _folded(state: RegistryState, records: Sequence[Record]) -> RegistryState:
    """The state after `records`. One that can be read and not be taken counts as one that can't be read: it stops nobody."""
    try:
        return fold(state, [read(value, offset) for offset, value in records])
    except Exception:
        for offset, value in records:
            try:
                state = fold(state, [read(value, offset)])
            except Exception as error:
                log.exception("entry %d of the registry can't be taken", offset)
                state = fold(state, [unread(value, offset, f"{type(error).__name__} when it is taken")])
    return state
