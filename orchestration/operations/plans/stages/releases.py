"""The stages that make, start, stop and delete a release."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from orchestration.operations.plans.stages.base import Stage
from pipelines.model.entries import AnyEntry, ReleaseState
from pipelines.model.missing import Gap, told
from pipelines.model.names import REGISTRY_TOPIC, Digest, OperationId, ReleaseName, TopicName


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """What a stage that writes a file has: its content and its digest."""

    journaled: ClassVar[bool] = False

    digest: Digest
    data: bytes = field(repr=False)

    @property
    def subject(self) -> str:
        return self.digest


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCode(_File, Stage):
    """Writes the frozen code to where drivers find it."""

    def describe(self) -> str:
        return f"freeze the code, {len(self.data):,} bytes, as {self.digest[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTable(_File, Stage):
    """Writes the file of a static table to where drivers find it."""

    def describe(self) -> str:
        return f"keep a static table, {len(self.data):,} bytes, as {self.digest[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic(Stage):
    """Creates a topic that a release owns."""

    name: TopicName
    partitions: int
    config: dict[str, str]

    def describe(self) -> str:
        policy = self.config.get("cleanup.policy", "delete")
        count = "1 partition" if self.partitions == 1 else f"{self.partitions} partitions"
        return f"create topic {self.name}: {count}, cleanup.policy={policy}"

    @property
    def subject(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRelease(Stage):
    """Enters the new release in the registry. Refused if it was staged in the meantime."""

    release: ReleaseName
    entries: tuple[AnyEntry, ...]

    def describe(self) -> str:
        return f"enter {self.release} in the registry"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptHistory(Stage):
    """Records that someone accepted that a release lacks some of its input."""

    release: ReleaseName
    missing: tuple[Gap, ...]

    def describe(self) -> str:
        return f"record that {self.release} may lack input {told(self.missing)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want(Stage):
    """Sets whether a release should run. `before`: which it was when the plan was made. If that has
    changed when the operation starts, it is refused; an operation that fails without a change restores it.
    """

    release: ReleaseName
    wanted: Literal["running", "stopped"]
    before: Literal["running", "stopped"] | None = None

    def describe(self) -> str:
        return f"ask {self.release} to {'run' if self.wanted == 'running' else 'stop'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(Stage):
    """Starts the driver, unless one already runs, and waits for its first heartbeat as running."""

    release: ReleaseName
    force: bool = False

    def describe(self) -> str:
        return f"start the driver of {self.release}" + (", and take over from a running one" if self.force else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitStopped(Stage):
    """Waits until the driver has stopped at a boundary and given back its lease."""

    release: ReleaseName
    timeout_s: float

    def describe(self) -> str:
        return f"wait until {self.release} has stopped at a boundary, at most {self.timeout_s:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetState(Stage):
    """Sets a release's state."""

    release: ReleaseName
    state: ReleaseState

    def describe(self) -> str:
        return f"set {self.release} to {self.state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic(Stage):
    """Deletes a topic that the registry records as the release's own."""

    name: TopicName

    def describe(self) -> str:
        return f"delete topic {self.name}"

    @property
    def subject(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup(Stage):
    """Deletes the release's consumer group."""

    group: ReleaseName

    def describe(self) -> str:
        return f"delete consumer group {self.group}"

    @property
    def subject(self) -> str:
        return self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFiles(Stage):
    """Deletes checkpoints, run folder, evidence and, if no other release has the same, frozen code and static tables."""

    release: ReleaseName
    code_digest: Digest | None
    evidence: tuple[OperationId, ...] = ()
    tables: tuple[Digest, ...] = ()

    def describe(self) -> str:
        parts = ["checkpoints"]
        parts += [f"evidence ({len(self.evidence)})"] if self.evidence else []
        parts += ["frozen code"] if self.code_digest else []
        parts += ["static tables"] if self.tables else []
        return f"delete files of {self.release}: {', '.join(parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Stage):
    """Marks the unread entries at these offsets of the registry as ignored."""

    offsets: tuple[int, ...]

    def describe(self) -> str:
        return f"ignore the registry entries at these offsets for good: {', '.join(map(str, self.offsets))}"

    @property
    def subject(self) -> str:
        return REGISTRY_TOPIC
