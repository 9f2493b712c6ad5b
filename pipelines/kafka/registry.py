"""The registry: what exists, who runs it, which operations are open, what consumers follow. One append-only topic."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from pipelines.kafka.client import require_broker
from pipelines.kafka.clock import BrokerClock
from pipelines.kafka.cluster import Cluster
from pipelines.kafka.failures import unavailable
from pipelines.kafka.heartbeats import Heartbeats
from pipelines.kafka.kept import Kept
from pipelines.kafka.log import Aside, FencedWriter, LogReader, Record
from pipelines.kafka.offsets import end_of
from pipelines.kafka.signs import SignsOfLife
from pipelines.kafka.snapshots import Folding, newest_snapshot, write_snapshot
from pipelines.kafka.topics import APPEND_ONLY, HEARTBEATS, refuse_without_registry
from pipelines.model.entries import ASIDE, Entry, encode, read
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC
from pipelines.model.parts import AnotherRegistry, refuse_cut
from pipelines.model.registry import RegistryState
from pipelines.model.signs import Sign
from pipelines.model.unread import Unread
from pipelines.settings import Settings, get_settings

# how often a long-running reader checks that the topic is still the same
_PROVE_S = 5.0

Decide = Callable[[RegistryState], Sequence[Entry]]


class Registry:
    """The registry of the cluster that the settings name. Reads are incremental; each step is checked and fenced.

    A cluster without a registry has an empty state; the first entry creates it. Raises Unavailable if the broker isn't
    there, can't be reached or refuses the login. Once the topic was deleted and recreated, reading further or taking a
    step raises AnotherRegistry.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        actor: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings or get_settings()
        self.actor = actor or getpass.getuser()
        # for what else the holder of this registry asks the cluster
        self.cluster = Cluster(self.settings, require_broker(self.settings))
        # for what the holder of this registry reads beside it: progress and heartbeats
        self.kept = Kept(self.settings)
        self.broker_clock = BrokerClock(self.settings)
        self.heartbeats = Heartbeats(self.settings, self.kept, self.broker_clock)
        self._clock = clock
        self._reader: LogReader | None = None
        self._folding = Folding()
        # Kafka's id of the topic that is read, and when it was last checked
        self._id: str | None = None
        self._proven_at = 0.0
        if self._open() is None:
            refuse_without_registry(self.settings, self.cluster.client)
        self._writer = FencedWriter(self.settings, REGISTRY_TOPIC, REGISTRY_TOPIC)

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.kept.close()
        self.broker_clock.close()
        if self._reader is not None:
            self._reader.close()

    @property
    def known(self) -> RegistryState:
        """The state as last read, without asking the broker."""
        return self._folding.state

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by the broker's clock: to be compared with times in the registry. Raises as
        `BrokerClock.now_ms` does.
        """
        return self.broker_clock.now_ms()

    @property
    def knows_time(self) -> bool:
        """Whether what `now_ms` told last was the broker's time, not this machine's own."""
        return self.broker_clock.is_brokers

    def signs_of_life(self, sign: Sign) -> SignsOfLife:
        """Sends `sign` again and again while it is entered; see `SignsOfLife`."""
        return SignsOfLife(self.broker_clock, sign, self.settings.heartbeat_s)

    @property
    def topic_id(self) -> str | None:
        """Kafka's id of the registry that the state comes from; None: there is no registry yet."""
        return self._id

    def history(self) -> Iterator[Entry | Unread]:
        """All entries up to now, oldest first: the audit trail, read lazily from the log."""
        if self._open() is None:
            return
        reader = LogReader(self.settings, REGISTRY_TOPIC, asides=True, client=self.cluster.client)
        try:
            for records in reader.records_to(reader.end()):
                for offset, value in records:
                    yield read(value, offset)
        finally:
            reader.close()

    def state(self, *, snapshots: bool = True) -> RegistryState:
        """The current state: reads to the end first. If `snapshots`, may also write a snapshot: after many entries."""
        state = self._now()
        snapshot = self._folding.snapshot() if snapshots and self._folding.due else None
        if snapshot is not None:
            # even if the write fails, don't try again before as many entries have come
            self._folding.since = 0
            write_snapshot(self.settings, snapshot, client=self.cluster.client)
        return state

    def poll(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` for new entries. Returns whether any came."""
        reader = self._open()
        if reader is None:
            time.sleep(timeout_s)
            return False
        records = reader.records(timeout_s)
        self._take(reader, records)
        return bool(records)

    def step(self, decide: Decide, *, op: str | None = None, reason: str | None = None) -> RegistryState:
        """One checked step: `decide` gets the newest state and returns the entries to write, or raises.

        Time, actor, operation and reason are filled in. Returns the state after the step.
        """

        def values() -> list[bytes]:
            entries = decide(self._now(prove=True))
            if entries and self._reader is None:
                self.ensure()
                # another process may have created the registry meanwhile, and written to it
                if self._now() != RegistryState():
                    entries = decide(self.known)
            return [_encoded(self._stamp(entry, op, reason)) for entry in entries]

        end = self._writer.append(values)
        if self._reader is not None:
            # a commit is acknowledged before its records can be read; `end` is before the transaction's marker
            self._read_to(self._reader, end + 1)
        return self.known

    def ensure(self) -> None:
        """Creates the registry if there is none. Call it before a release's first topic is created."""
        if self._open() is None:
            # the registry last: if it exists, both exist
            self.cluster.ensure_topic(HEARTBEATS_TOPIC, 1, HEARTBEATS)
            self.cluster.ensure_topic(REGISTRY_TOPIC, 1, APPEND_ONLY)
            self._reader = self._begin()

    def ensure_heartbeats(self) -> bool:
        """Creates the topic of heartbeats if it was deleted, and returns whether it was. Without it no driver is heard."""
        if self._open() is None or self.cluster.partition_count(HEARTBEATS_TOPIC) is not None:
            return False
        return self.cluster.ensure_topic(HEARTBEATS_TOPIC, 1, HEARTBEATS)

    def _open(self) -> LogReader | None:
        if self._reader is None and self.cluster.partition_count(REGISTRY_TOPIC) is not None:
            self._reader = self._begin()
        return self._reader

    def _begin(self) -> LogReader:
        """A reader that starts at the newest snapshot, if there is one and its last entry is in this log."""
        # ask for the id first: if the topic is recreated while it is read, the id will differ later
        self._id, self._proven_at = self._id_now(), self._clock()
        end = end_of(self.settings, REGISTRY_TOPIC, 1, client=self.cluster.client)[0]
        self._folding = Folding(newest_snapshot(self.settings, end, client=self.cluster.client))
        reader = LogReader(
            self.settings, REGISTRY_TOPIC, start=self._folding.start, asides=True, client=self.cluster.client
        )
        try:
            deadline = time.monotonic() + self.settings.request_timeout_s
            refuse_cut(reader.first, self._folding.start)
            while not self._folding.proven:
                self._take(reader, reader.records(0.2))
                if time.monotonic() > deadline:
                    raise unavailable(self.settings, None)
        except BaseException:
            reader.close()
            raise
        return reader

    def _now(self, *, prove: bool = False) -> RegistryState:
        """The current state. Raises AnotherRegistry: it checks at intervals, if the end moved back, or to `prove`."""
        reader = self._open()
        if reader is not None:
            end = reader.end()
            if prove or end < reader.position or self._clock() - self._proven_at > _PROVE_S:
                self._prove()
            self._read_to(reader, end)
        return self.known

    def _prove(self) -> None:
        now = self._id_now()
        # a topic that was just created may have had no id yet
        self._id = self._id or now
        # if the topic is gone, reading it raises that
        if now not in (self._id, None):
            raise AnotherRegistry
        self._proven_at = self._clock()

    def _id_now(self) -> str | None:
        return self.cluster.topic_ids([REGISTRY_TOPIC]).get(REGISTRY_TOPIC)

    def _stamp(self, entry: Entry, op: str | None, reason: str | None) -> Entry:
        return entry.model_copy(
            update={
                "at_ms": entry.at_ms or self.now_ms(),
                "actor": entry.actor or self.actor,
                "op": entry.op or op,
                "reason": entry.reason or reason,
            }
        )

    def _read_to(self, reader: LogReader, end: int) -> None:
        for records in reader.records_to(end):
            self._take(reader, records)

    def _take(self, reader: LogReader, records: Sequence[Record]) -> None:
        if not self._folding.take(records):
            refuse_cut(reader.first, 0)
            reader.seek(0)


def _encoded(entry: Entry) -> bytes:
    data = encode(entry)
    return Aside(data) if isinstance(entry, ASIDE) else data
