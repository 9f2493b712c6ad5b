"""The stages by which two releases meet and are compared, and consumers move from one to the other."""

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
    """Asks `other` to mark its first boundary that `release` can meet. With a switch, that is the barrier."""

    release: ReleaseName
    other: ReleaseName
    switch: int | None
    alias: AppName | None
    deadline_s: float

    def describe(self) -> str:
        kind = "evidence" if self.switch is None else "barrier"
        return f"ask {self.other} to mark the {kind}: its first boundary that {self.release} can meet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet(Stage):
    """Waits until `release` has reached exactly the marked boundary of `other`. It then keeps running."""

    release: ReleaseName
    other: ReleaseName
    switch: int | None
    timeout_s: float

    def describe(self) -> str:
        return f"run {self.release} to exactly that boundary of {self.other}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(Stage):
    """Fences a release whose driver is dead or stuck. Its last committed batch is then its end."""

    release: ReleaseName

    def describe(self) -> str:
        return f"fence {self.release}: it can't write any more, and its last committed batch is its end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseStart(Stage):
    """Chooses where consumers continue in `release`, which shares no boundary with the end of the fenced `other`."""

    release: ReleaseName
    other: ReleaseName
    allowed: Literal["gap", "duplicates", "either"] | None

    def describe(self) -> str:
        how = {
            None: "",
            "either": "",
            "gap": "; a gap is allowed",
            "duplicates": "; duplicates are allowed",
        }[self.allowed]
        return f"choose the boundary where consumers of {self.release} continue{how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeNewest(Stage):
    """Lets consumers of tables continue in `release` at its newest boundary, because it has no input position in common
    with the other release.
    """

    release: ReleaseName

    def describe(self) -> str:
        return f"take the newest boundary of {self.release}: consumers continue there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare(Stage):
    """Folds both results as of the marked boundary, or as of each one's position if one release is dead; compares them;
    and records the evidence.
    """

    live: ReleaseName
    new: ReleaseName
    tolerance: float
    samples: int

    def describe(self) -> str:
        return f"compare the results of {self.live} and {self.new} at that boundary, and record the evidence"

    @property
    def subject(self) -> str:
        return self.new


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareDelta(Stage):
    """Does the part of `WriteDelta` or `VerifyStream` that is possible before the releases meet. Consumers then only
    wait for the rest.
    """

    evidence: OperationId
    old: ReleaseName
    new: ReleaseName

    def describe(self) -> str:
        return f"read what has changed since evidence {self.evidence}, while consumers keep reading"

    @property
    def subject(self) -> str:
        return self.new


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDelta(Stage):
    """Writes what changed since the evidence cut, so that consumers of a table can move from the old result to the new
    one.
    """

    evidence: OperationId
    old: ReleaseName
    new: ReleaseName
    max_changed: float | None

    def describe(self) -> str:
        return f"write what has changed since evidence {self.evidence}, for the consumers of the table"

    @property
    def subject(self) -> str:
        return self.new


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyStream(Stage):
    """Compares what two streams have written since the evidence cut, record by record, before consumers switch."""

    evidence: OperationId
    old: ReleaseName
    new: ReleaseName
    max_changed: float | None

    def describe(self) -> str:
        return f"compare what both streams have written since evidence {self.evidence}"

    @property
    def subject(self) -> str:
        return self.new


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSwitch(Stage):
    """Appends the switch to the alias's chain, the one step that moves consumers. Refused if anything has changed."""

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
    """Records that a switch will not happen. Followers at its barrier continue with the old result."""

    alias: AppName
    operation: OperationId

    def describe(self) -> str:
        return f"abort switch {self.operation} of {self.alias}"

    @property
    def subject(self) -> str:
        return self.alias
