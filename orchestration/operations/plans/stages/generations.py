"""The stages by which a release goes from one generation to another."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.operations.plans.stages.base import Stage
from pipelines.model.names import AppName, ReleaseName
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import ReleaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginGeneration(Stage):
    """Has a release go on in another generation: one from `start` on, or, with `again`, one that there was before.

    `keeps`: it has the state of the generation before. `result`, `meet`, `cleared`, `until`, `then`,
    `max_records_per_batch`: as the registry's entry has them. `state`: what the release is then; None: as it was.
    What the plan was made on, None: whatever it is. `old`: the generation that ends; `links`: how many switches the
    alias has had; `at`: where that generation ends.
    """

    release: ReleaseName
    generation: int
    start: SourcePosition
    again: bool = False
    keeps: bool = False
    result: int | None = None
    meet: bool = False
    cleared: bool = False
    until: SourcePosition | None = None
    then: SourcePosition | None = None
    max_records_per_batch: int | None = None
    state: ReleaseState | None = None
    old: int | None = None
    links: int | None = None
    at: SourcePosition | None = None

    def describe(self) -> str:
        how = "its own state, where it ended" if self.again else "the state as it is" if self.keeps else "fresh state"
        until = ", up to the given end" if self.until and not self.then else ""
        until = ", and leave out the given record" if self.then else until
        return (
            f"begin generation {self.generation} of {self.release}{' again' if self.again else ''}, from {how}{until}"
        )

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.generation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishBatch(Stage):
    """Runs a stopped release until Spark's log has the batch that Kafka has, and no further."""

    release: ReleaseName
    timeout_s: float

    def describe(self) -> str:
        return f"finish the batch of {self.release} that Kafka has and Spark's log has not"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seize(Stage):
    """Takes the lease of a stopped release for this process, so that no driver starts while it is changed."""

    release: ReleaseName

    def describe(self) -> str:
        return f"take the right to run {self.release}, so that nobody starts it meanwhile"


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack(Stage):
    """Ends the lease that `Seize` took."""

    release: ReleaseName

    def describe(self) -> str:
        return f"give the right to run {self.release} back"


@dataclass(frozen=True, slots=True, kw_only=True)
class InheritState(Stage):
    """Makes the checkpoint of a new generation: the state of `old`, which stands `at`, standing at `position`."""

    release: ReleaseName
    old: int
    generation: int
    at: SourcePosition
    position: SourcePosition

    def describe(self) -> str:
        return f"keep generation {self.old}'s state of {self.release} for generation {self.generation}, by hard links, at the new position"

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.generation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone(Stage):
    """Writes a tombstone for every key of the result that the release goes on writing."""

    release: ReleaseName
    generation: int

    def describe(self) -> str:
        return f"write a tombstone for each key of the result of {self.release}"

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.generation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach(Stage):
    """Waits until the generation has read to exactly where the one before ended."""

    release: ReleaseName
    timeout_s: float

    def describe(self) -> str:
        return f"wait until {self.release} has read to exactly where the old result ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareGenerations(Stage):
    """Compares the results of two generations of a release at the same input, and writes what takes the old to the new."""

    release: ReleaseName
    old: int
    new: int

    def describe(self) -> str:
        return f"compare the results of generations {self.old} and {self.new} of {self.release} there, for consumers of tables"

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteClearing(Stage):
    """Writes a tombstone for every key of the old generation's result, for consumers that go on in the new one's."""

    release: ReleaseName
    old: int

    def describe(self) -> str:
        return f"write a tombstone for each key of generation {self.old} of {self.release}, for consumers that go on"

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.old}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendGeneration(Stage):
    """Appends to the alias's chain that a release goes on in another result: from the old one's end to, with `met`, where
    the new one stands at the same input; else to its beginning.
    """

    alias: AppName
    number: int
    release: ReleaseName
    old: int
    new: int
    met: bool

    def describe(self) -> str:
        return (
            f"append switch {self.number} to {self.alias}: from generation {self.old} of {self.release} to {self.new}"
        )

    @property
    def subject(self) -> str:
        return self.alias


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitFollowers(Stage):
    """Waits until no registered follower of `alias` needs what lies before switch `number`."""

    alias: AppName
    number: int
    timeout_s: float

    def describe(self) -> str:
        return (
            f"wait until the followers of {self.alias} have passed switch {self.number}, at most {self.timeout_s:g} s"
        )

    @property
    def subject(self) -> str:
        return self.alias


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCheckpoint(Stage):
    """Deletes the checkpoints of a generation that is over."""

    release: ReleaseName
    generation: int

    def describe(self) -> str:
        return f"delete the checkpoint of generation {self.generation} of {self.release}"

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.generation}"
