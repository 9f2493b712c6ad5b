"""The registry: what exists, who runs it, what is under way, what consumers follow. One topic, append-only."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from pipelines.kafka.client import require_broker
from pipelines.kafka.log import FencedWriter, LogReader
from pipelines.kafka.topics import APPEND_ONLY, HEARTBEATS, ensure_topic, partition_count
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC
from pipelines.model.registry import Entry, RegistryState, decode, encode, fold
from pipelines.settings import Settings, get_settings

Decide = Callable[[RegistryState], Sequence[Entry]]


def now_ms() -> int:
    """Milliseconds since the epoch by this machine's clock."""
    return time.time_ns() // 1_000_000


class Registry:
    """The registry of the cluster that the settings name. Reads incrementally; a step is checked and fenced.

    A cluster without one has an empty state; the first entry makes it. Raises Unavailable where the broker isn't there,
    isn't reachable or refuses the login.
    """

    def __init__(self, settings: Settings | None = None, *, actor: str | None = None) -> None:
        self.settings = settings or get_settings()
        self.actor = actor or getpass.getuser()
        self._admin = require_broker(self.settings)
        self._reader: LogReader | None = None
        self._open()
        self._writer = FencedWriter(self.settings, REGISTRY_TOPIC, REGISTRY_TOPIC)
        self._entries: list[Entry] = []
        self._state = RegistryState()

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    @property
    def known(self) -> RegistryState:
        """The state as last read, without asking the broker."""
        return self._state

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries read so far, oldest first: the audit trail."""
        return self._entries

    def state(self) -> RegistryState:
        """The state as of now: reads to the end first."""
        reader = self._open()
        if reader is not None:
            self._take(reader.read_to_end())
        return self._state

    def poll(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` for new entries. Returns whether any came."""
        reader = self._open()
        if reader is None:
            time.sleep(timeout_s)
            return False
        values = reader.poll(timeout_s)
        self._take(values)
        return bool(values)

    def step(self, decide: Decide, *, op: str | None = None, reason: str | None = None) -> RegistryState:
        """One checked step: `decide` gets the newest state and returns the entries to write, or raises.

        Time, actor, operation and reason are filled in. Returns the state after the step.
        """

        def values() -> list[bytes]:
            entries = decide(self.state())
            if entries and self._reader is None:
                # the registry last: once it is there, both are
                ensure_topic(self.settings, HEARTBEATS_TOPIC, 1, HEARTBEATS)
                ensure_topic(self.settings, REGISTRY_TOPIC, 1, APPEND_ONLY)
                self._reader = LogReader(self.settings, REGISTRY_TOPIC, client=self._admin)
                # another one may have made it, and written
                if self.state() != RegistryState():
                    entries = decide(self._state)
            return [encode(self._stamp(entry, op, reason)) for entry in entries]

        end = self._writer.append(values)
        if self._reader is not None:
            # a commit is acknowledged before its records can be read; `end` lies before the transaction's marker
            self._take(self._reader.read_to(end + 1))
        return self._state

    def _open(self) -> LogReader | None:
        if self._reader is None and partition_count(self.settings, REGISTRY_TOPIC, client=self._admin) is not None:
            self._reader = LogReader(self.settings, REGISTRY_TOPIC, client=self._admin)
        return self._reader

    def _stamp(self, entry: Entry, op: str | None, reason: str | None) -> Entry:
        return entry.model_copy(
            update={
                "at_ms": entry.at_ms or now_ms(),
                "actor": entry.actor or self.actor,
                "op": entry.op or op,
                "reason": entry.reason or reason,
            }
        )

    def _take(self, values: Sequence[bytes]) -> None:
        entries = [decode(value) for value in values]
        self._entries += entries
        self._state = fold(self._state, entries)
