"""The stages by which a release goes from one generation to another."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.operations.plans.stages.base import Stage
from pipelines.model.entries import ReleaseState
from pipelines.model.names import AppName, ReleaseName
from pipelines.model.positions import SourcePosition, Span, left_out_of, replay_end


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginGeneration(Stage):
    """Moves a release to another generation: a new one that starts at `start` or, with `again`, an earlier one.

    `keeps`: it keeps the state of the last generation. `result`, `meet`, `cleared`, `until`, `then`,
    `max_records_per_batch`: as in the registry's entry. `state`: the release's state after that; None: unchanged.

    What the plan was made on (None: does not matter): `old`: the generation that ends; `links`: how many switches the
    alias has had; `at`: where the old generation ends.
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
        how = "its own state, where it ended" if self.again else "the current state" if self.keeps else "an empty state"
        skips, stops = self.left_out is not None, self.end is not None
        limit = ", and skip the given record" if skips else ", up to the given end" if stops else ""
        return f"{'resume' if self.again else 'start'} generation {self.generation} of {self.release} with {how}{limit}"

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.generation}"

    @property
    def end(self) -> SourcePosition | None:
        """Where a bounded replay stops; None: it isn't bounded."""
        return replay_end(self.until, self.then)

    @property
    def left_out(self) -> Span | None:
        """The input that it leaves out."""
        return left_out_of(self.until, self.then)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishBatch(Stage):
    """Runs a stopped release until Spark's log has the batch that is committed to Kafka, and no further."""

    release: ReleaseName
    timeout_s: float

    def describe(self) -> str:
        return f"finish the batch of {self.release} that is committed to Kafka, if it is missing in Spark's log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seize(Stage):
    """Takes the lease of a stopped release for this process, so that no driver starts while it is changed."""

    release: ReleaseName

    def describe(self) -> str:
        return f"take the lease of {self.release}, so that no one else starts it"


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack(Stage):
    """Ends the lease that `Seize` took."""

    release: ReleaseName

    def describe(self) -> str:
        return f"give back the lease of {self.release}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InheritState(Stage):
    """Makes the checkpoint of a new generation from the state of `old`, which is at position `at`, and moves it to
    `position`.
    """

    release: ReleaseName
    old: int
    generation: int
    at: SourcePosition
    position: SourcePosition

    def describe(self) -> str:
        return f"give generation {self.generation} of {self.release} the state of generation {self.old}, as hard links, at the new position"

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.generation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone(Stage):
    """Writes a tombstone for every key of the result, which the release then writes again."""

    release: ReleaseName
    generation: int

    def describe(self) -> str:
        return f"write a tombstone for each key of the result of {self.release}"

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.generation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach(Stage):
    """Waits until the generation has read to exactly where the last one ended."""

    release: ReleaseName
    timeout_s: float

    def describe(self) -> str:
        return f"wait until {self.release} has read to exactly where the old result ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareGenerations(Stage):
    """Compares the results of two generations of a release at the same input, and writes the delta from old to new."""

    release: ReleaseName
    old: int
    new: int

    def describe(self) -> str:
        return f"compare the results of generations {self.old} and {self.new} of {self.release} at that position, and write the delta"

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteClearing(Stage):
    """Writes a tombstone for every key of the old generation's result, for consumers that move to the new one."""

    release: ReleaseName
    old: int

    def describe(self) -> str:
        return f"write a tombstone for each key of generation {self.old} of {self.release}, for consumers that move to the new result"

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.old}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendGeneration(Stage):
    """Appends a switch to another result of the same release to the alias's chain: from the old result's end to the
    same input in the new one (`met`), or to the new one's start.
    """

    alias: AppName
    number: int
    release: ReleaseName
    old: int
    new: int
    met: bool

    def describe(self) -> str:
        return f"append switch {self.number} to {self.alias}: from generation {self.old} of {self.release} to generation {self.new}"

    @property
    def subject(self) -> str:
        return self.alias


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitFollowers(Stage):
    """Waits until no registered follower of `alias` needs the results before switch `number`."""

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
    """Deletes the checkpoints of an ended generation."""

    release: ReleaseName
    generation: int

    def describe(self) -> str:
        return f"delete the checkpoint of generation {self.generation} of {self.release}"

    @property
    def subject(self) -> str:
        return f"{self.release}.g{self.generation}"
