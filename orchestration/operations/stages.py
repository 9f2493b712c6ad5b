"""The stages that plans are made of. Each is data; `describe` and `apply` know them all.

Applying a stage again does only what is left of it, so a killed operation is resumed by applying its plan again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, assert_never, get_args

from pydantic import TypeAdapter

from pipelines.errors import SwitchyardError
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import AnyEntry, ReleaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCode:
    """Writes the frozen code where drivers find it."""

    digest: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Creates a topic that a release owns."""

    name: str
    partitions: int
    config: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRelease:
    """Enters the new release; refused if it was staged meanwhile."""

    release: str
    entries: tuple[AnyEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginGeneration:
    """Has a release run from fresh state, from `start` on, into the generation's own topic."""

    release: str
    generation: int
    start: SourcePosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Sets what is wanted of a release."""

    release: str
    wanted: Literal["running", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Starts the driver, unless one runs, and waits until it is heard of."""

    release: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitStopped:
    """Waits until the driver has stopped at a boundary and given up its lease."""

    release: str
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetState:
    """Sets a release's state."""

    release: str
    state: ReleaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class Align:
    """Pauses `release` at a boundary, to meet `other`."""

    release: str
    other: str
    switch: int | None
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagBoundary:
    """Has `other` flag its first boundary that `release` can meet; with a switch it is the barrier."""

    release: str
    other: str
    switch: int | None
    alias: str | None
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet:
    """Waits until `release` stands at exactly the flagged boundary of `other`, and goes on."""

    release: str
    other: str
    switch: int | None
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Takes the right to write from a release whose driver is dead or stuck: its last committed batch is its end."""

    release: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseStart:
    """Chooses where consumers of a stream go on in `release`, whose boundaries are not those of the fenced `other`."""

    release: str
    other: str
    allowed: Literal["gap", "duplicates"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Folds both results as of the flagged boundary, compares them, and records what it found as evidence."""

    live: str
    new: str
    tolerance: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDelta:
    """Writes what changed since the evidence cut, so that table consumers get from the old result to the new one."""

    evidence: str
    old: str
    new: str
    max_changed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSwitch:
    """Appends the switch to the alias's chain: the one step that moves consumers. Refused if anything changed."""

    alias: str
    number: int
    old: str | None
    new: str
    evidence: str | None
    allowed: Literal["gap", "duplicates"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortSwitch:
    """Writes that a switch will not happen: followers at its barrier go on with the old result."""

    alias: str
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """Deletes a topic that the registry records as the release's own."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Deletes the release's consumer group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFiles:
    """Deletes checkpoints, run folder, what its comparisons found and, if no other release has the same, the frozen code."""

    release: str
    code_digest: str | None
    evidence: tuple[str, ...] = ()


Stage = (
    StoreCode | CreateTopic | RecordRelease | BeginGeneration | Want | Launch | AwaitStopped | SetState | Align | FlagBoundary | Meet
    | Fence | ChooseStart | Compare | WriteDelta | AppendSwitch | AbortSwitch | DeleteTopic | DeleteGroup | DeleteFiles
)  # fmt: skip


def describe(stage: Stage) -> str:
    """What a stage would do, in one line."""
    match stage:
        case StoreCode():
            return f"freeze the code, {len(stage.data)} bytes, as {stage.digest[:12]}"
        case CreateTopic():
            policy = stage.config.get("cleanup.policy", "delete")
            return f"create topic {stage.name}: {stage.partitions} partitions, cleanup.policy={policy}"
        case RecordRelease():
            return f"enter {stage.release} in the registry"
        case BeginGeneration():
            return f"begin generation {stage.generation} of {stage.release}, from fresh state"
        case Want():
            return f"want {stage.release} {stage.wanted}"
        case Launch():
            return f"start the driver of {stage.release}" + (", by force" if stage.force else "")
        case AwaitStopped():
            return f"wait until {stage.release} has stopped at a boundary, at most {stage.timeout_s:g} s"
        case SetState():
            return f"set {stage.release} to {stage.state}"
        case Align():
            return f"pause {stage.release} at a boundary"
        case FlagBoundary():
            kind = "evidence" if stage.switch is None else "barrier"
            return f"have {stage.other} flag the {kind}: its first boundary that {stage.release} can meet"
        case Meet():
            return f"run {stage.release} to exactly that boundary of {stage.other}"
        case Fence():
            return f"take the right to write from {stage.release}: its last committed batch is its end"
        case ChooseStart():
            how = f", with {stage.allowed} allowed" if stage.allowed else ""
            return f"choose where consumers go on in {stage.release}{how}"
        case Compare():
            return f"compare the results of {stage.live} and {stage.new} as of that boundary, and record the evidence"
        case WriteDelta():
            return f"write what changed since evidence {stage.evidence} for consumers of tables"
        case AppendSwitch():
            since = f"from {stage.old} to {stage.new}" if stage.old else f"to {stage.new}"
            return f"append switch {stage.number} to {stage.alias}: {since}"
        case AbortSwitch():
            return f"abort switch {stage.operation} of {stage.alias}"
        case DeleteTopic():
            return f"delete topic {stage.name}"
        case DeleteGroup():
            return f"delete consumer group {stage.group}"
        case DeleteFiles():
            parts = [f"delete checkpoints of {stage.release}"]
            parts += [f"what {len(stage.evidence)} of its comparisons found"] if stage.evidence else []
            return " and ".join([*parts, *(["its frozen code"] if stage.code_digest else [])])
        case _:
            assert_never(stage)


def to_journal(stage: Stage) -> dict[str, Any]:
    """A stage as the journal keeps it."""
    return {"stage": type(stage).__name__, **asdict(stage)}


def from_journal(data: Mapping[str, Any]) -> Stage:
    """The stage that `to_journal` wrote. Raises SwitchyardError for one that this version doesn't know."""
    kinds = {kind.__name__: kind for kind in get_args(Stage)}
    kind = kinds.get(data["stage"])
    if kind is None:
        raise SwitchyardError(f"the journal has a stage {data['stage']} that this version doesn't know",
                              fix="resume with the version that began it, or abandon it")  # fmt: skip
    stage: Stage = TypeAdapter(kind).validate_python({name: value for name, value in data.items() if name != "stage"})
    return stage
