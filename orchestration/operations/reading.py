"""What an operation looks with, and nothing that it could change: whoever makes a plan gets no more than this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from pipelines.engine.lease import held_by
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.kept import Kept
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.registry import now_ms
from pipelines.model.missing import InputNow
from pipelines.model.progress import Heartbeat, Progress
from pipelines.model.registry import Entry, RegistryState, Release, fold
from pipelines.model.switch import expired
from pipelines.model.unread import Unread
from pipelines.settings import Settings

Say = Callable[[str], None]


def quiet(_: str) -> None:
    """Says nothing."""


class ReadingCluster(Protocol):
    """What can be asked of a cluster: as `pipelines.kafka.cluster.Cluster` has it."""

    def topic_names(self) -> set[str]: ...

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]: ...

    def inputs_now(self, names: Iterable[str]) -> dict[str, InputNow]: ...

    def partition_count(self, name: str) -> int | None: ...

    def first_offsets(self, names: Iterable[str]) -> dict[str, dict[int, int]]: ...

    def end_offsets(self, names: Iterable[str]) -> dict[str, dict[int, int]]: ...

    def offsets_at(self, names: Iterable[str], at_ms: int) -> dict[str, dict[int, int]]: ...

    def group_names(self) -> set[str]: ...

    def group_offsets(self, group: str) -> dict[str, dict[int, tuple[int, str]]]: ...


class ReadingRegistry(Protocol):
    """A registry that is read and not written: as `pipelines.kafka.registry.Registry` has it."""

    @property
    def cluster(self) -> ReadingCluster: ...

    @property
    def kept(self) -> Kept: ...

    @property
    def known(self) -> RegistryState: ...

    def state(self) -> RegistryState: ...

    def history(self) -> Iterator[Entry | Unread]: ...


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an operation may look at. `say` is told what happens, a line at a time."""

    settings: Settings
    registry: ReadingRegistry
    say: Say = quiet

    @property
    def cluster(self) -> ReadingCluster:
        """What else can be asked of the cluster that the registry is on."""
        return self.registry.cluster

    def standing(self) -> RegistryState:
        """The registry as if operations whose deadline has passed had been ended: what a plan is made on."""
        state = self.registry.state()
        return fold(state, expired(state, now_ms()))

    def holder(self, release: Release) -> str | None:
        """Who runs a release, in words; None if nobody does."""
        return self.holder_by(release, self.beats())

    def holder_by(self, release: Release, beats: Mapping[str, Heartbeat]) -> str | None:
        """The same, by heartbeats that are known already."""
        return held_by(release, beats.get(release.name), self.settings, at_ms=now_ms())

    def progress(self, release: str) -> Progress | None:
        """The newest progress record of a release."""
        return newest_progress(self.settings, release, kept=self.registry.kept)

    def beats(self, window_s: float = 60.0) -> dict[str, Heartbeat]:
        """Release -> the newest heartbeat of its newest driver, of the last `window_s` seconds."""
        return latest_heartbeats(self.settings, window_s=window_s, kept=self.registry.kept)
