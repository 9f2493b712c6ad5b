"""What an operation reads with. It can't write anything, and a planner gets no more than this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from pipelines.engine.lease import held_by
from pipelines.kafka.heartbeats import Heartbeats
from pipelines.kafka.kept import Kept
from pipelines.kafka.progress import newest_progress
from pipelines.model.entries import Entry
from pipelines.model.missing import InputNow, Replication
from pipelines.model.progress import Heartbeat, Progress
from pipelines.model.registry import RegistryState, Release, fold
from pipelines.model.switch import expired
from pipelines.model.unread import Unread
from pipelines.settings import Settings

Say = Callable[[str], None]


def quiet(_: str) -> None:
    """Says nothing."""


class ReadingCluster(Protocol):
    """What can be asked of a cluster. `pipelines.kafka.cluster.Cluster` implements it."""

    def topic_names(self) -> set[str]: ...

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]: ...

    def inputs_now(self, names: Iterable[str]) -> dict[str, InputNow]: ...

    def replication(self, names: Iterable[str]) -> dict[str, Replication]: ...

    def partition_count(self, name: str) -> int | None: ...

    def first_offsets(self, names: Iterable[str]) -> dict[str, dict[int, int]]: ...

    def end_offsets(self, names: Iterable[str]) -> dict[str, dict[int, int]]: ...

    def offsets_at(self, names: Iterable[str], at_ms: int) -> dict[str, dict[int, int]]: ...

    def group_names(self) -> set[str]: ...

    def group_offsets(self, group: str) -> dict[str, dict[int, tuple[int, str]]]: ...


class ReadingRegistry(Protocol):
    """A registry that is only read. `pipelines.kafka.registry.Registry` implements it."""

    @property
    def cluster(self) -> ReadingCluster: ...

    @property
    def kept(self) -> Kept: ...

    @property
    def heartbeats(self) -> Heartbeats: ...

    @property
    def known(self) -> RegistryState: ...

    def now_ms(self) -> int: ...

    def state(self) -> RegistryState: ...

    def history(self) -> Iterator[Entry | Unread]: ...


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an operation may read. `say` gets what happens, a line at a time."""

    settings: Settings
    registry: ReadingRegistry
    say: Say = quiet

    @property
    def cluster(self) -> ReadingCluster:
        """The cluster that the registry is on, for everything else."""
        return self.registry.cluster

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by the broker's clock. Times in the registry are compared with this one only: other
        hosts have written them.
        """
        return self.registry.now_ms()

    def state_for_planning(self) -> RegistryState:
        """The registry as if operations past their deadline had been ended. Plans are made on this."""
        state = self.registry.state()
        # most often nothing is open: then nobody has to ask for the time
        return fold(state, expired(state, self.now_ms())) if state.has_open else state

    def holder(self, release: Release) -> str | None:
        """Who runs a release, in words; None: nobody."""
        return self.holder_by(release, self.beats())

    def holder_by(self, release: Release, beats: Mapping[str, Heartbeat]) -> str | None:
        """The same, by heartbeats that are already known."""
        return held_by(release, beats.get(release.name), self.settings, at_ms=self.now_ms())

    def progress(self, release: str) -> Progress | None:
        """The newest progress record of a release. Raises as `newest_progress` does."""
        return newest_progress(self.settings, release, kept=self.registry.kept)

    def beats(self, window_s: float | None = None) -> dict[str, Heartbeat]:
        """Release -> the newest heartbeat of its newest driver, from the last `window_s` seconds, as `Heartbeats.latest`."""
        return self.registry.heartbeats.latest(window_s=window_s)
