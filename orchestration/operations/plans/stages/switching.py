"""The stages by which two releases meet, are compared, and consumers go from one to the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestration.operations.plans.stages.base import Stage
from pipelines.model.names import AppName, OperationId, ReleaseName


@dataclass(frozen=True, slots=True, kw_only=True)
class Align(Stage):
    """Pauses `release` at a boundary, to meet `other`."""

    release: ReleaseName
    other: ReleaseName
    switch: int | None
    timeout_s: float

    def describe(self) -> str:
        return f"pause {self.release} at a boundary"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagBoundary(Stage):
    """Has `other` flag its first boundary that `release` can meet; with a switch it is the barrier."""

    release: ReleaseName
    other: ReleaseName
    switch: int | None
    alias: AppName | None
    deadline_s: float

    def describe(self) -> str:
        kind = "evidence" if self.switch is None else "barrier"
        return f"have {self.other} flag the {kind}: its first boundary that {self.release} can meet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet(Stage):
    """Waits until `release` stands at exactly the flagged boundary of `other`, and goes on."""

    release: ReleaseName
    other: ReleaseName
    switch: int | None
    timeout_s: float

    def describe(self) -> str:
        return f"run {self.release} to exactly that boundary of {self.other}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(Stage):
    """Takes the right to write from a release whose driver is dead or stuck: its last committed batch is its end."""

    release: ReleaseName

    def describe(self) -> str:
        return f"take the right to write from {self.release}: its last committed batch is its end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseStart(Stage):
    """Chooses where consumers of a stream go on in `release`, whose boundaries are not those of the fenced `other`."""

    release: ReleaseName
    other: ReleaseName
    allowed: Literal["gap", "duplicates", "either"] | None

    def describe(self) -> str:
        how = f", with {self.allowed} allowed" if self.allowed else ""
        return f"choose where consumers go on in {self.release}{how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare(Stage):
    """Folds both results as of the flagged boundary, or of where each one stands if one is dead, compares them, and
    records what it found as evidence.
    """

    live: ReleaseName
    new: ReleaseName
    tolerance: float
    samples: int

    def describe(self) -> str:
        return f"compare the results of {self.live} and {self.new} as of there, and record the evidence"

    @property
    def subject(self) -> str:
        return self.new


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareDelta(Stage):
    """Does of `WriteDelta` or `VerifyStream` what can be done before anyone is asked to meet: consumers then wait for what comes after it."""

    evidence: OperationId
    old: ReleaseName
    new: ReleaseName

    def describe(self) -> str:
        return f"read what has changed since evidence {self.evidence} so far, while consumers read on"

    @property
    def subject(self) -> str:
        return self.new


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDelta(Stage):
    """Writes what changed since the evidence cut, so that table consumers get from the old result to the new one."""

    evidence: OperationId
    old: ReleaseName
    new: ReleaseName
    max_changed: float | None

    def describe(self) -> str:
        return f"write what changed since evidence {self.evidence} for consumers of tables"

    @property
    def subject(self) -> str:
        return self.new


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyStream(Stage):
    """Compares what two streams got since the evidence cut, record by record, before consumers change over."""

    evidence: OperationId
    old: ReleaseName
    new: ReleaseName
    max_changed: float | None

    def describe(self) -> str:
        return f"compare what both streams got since evidence {self.evidence}"

    @property
    def subject(self) -> str:
        return self.new


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSwitch(Stage):
    """Appends the switch to the alias's chain: the one step that moves consumers. Refused if anything changed."""

    alias: AppName
    number: int
    old: ReleaseName | None
    new: ReleaseName
    evidence: OperationId | None
    allowed: Literal["gap", "duplicates"] | None = None

    def describe(self) -> str:
        since = f"from {self.old} to {self.new}" if self.old else f"to {self.new}"
        return f"append switch {self.number} to {self.alias}: {since}"

    @property
    def subject(self) -> str:
        return self.alias


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortSwitch(Stage):
    """Writes that a switch will not happen: followers at its barrier go on with the old result."""

    alias: AppName
    operation: OperationId

    def describe(self) -> str:
        return f"abort switch {self.operation} of {self.alias}"

    @property
    def subject(self) -> str:
        return self.alias
