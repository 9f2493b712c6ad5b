"""The stages that plans are made of. Each is data; `describe` and `apply` know them all.

Applying a stage again does only what is left of it, so a killed operation is resumed by applying its plan again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, assert_never, get_args

from pydantic import TypeAdapter, ValidationError

from pipelines.errors import SwitchyardError
from pipelines.model.missing import Gap, told
from pipelines.model.names import AppName, Digest, OperationId, ReleaseName, TopicName
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import AnyEntry, ReleaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCode:
    """Writes the frozen code where drivers find it."""

    digest: Digest
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Creates a topic that a release owns."""

    name: TopicName
    partitions: int
    config: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRelease:
    """Enters the new release; refused if it was staged meanwhile."""

    release: ReleaseName
    entries: tuple[AnyEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptHistory:
    """Records that someone has accepted what a release lacks of its input."""

    release: ReleaseName
    missing: tuple[Gap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginGeneration:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishBatch:
    """Runs a stopped release until Spark's log has the batch that Kafka has, and no further."""

    release: ReleaseName
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seize:
    """Takes the lease of a stopped release for this process, so that no driver starts while it is changed."""

    release: ReleaseName


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Ends the lease that `Seize` took."""

    release: ReleaseName


@dataclass(frozen=True, slots=True, kw_only=True)
class InheritState:
    """Makes the checkpoint of a new generation: the state of `old`, which stands `at`, standing at `position`."""

    release: ReleaseName
    old: int
    generation: int
    at: SourcePosition
    position: SourcePosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """Writes a tombstone for every key of the result that the release goes on writing."""

    release: ReleaseName
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Waits until the generation has read to exactly where the one before ended."""

    release: ReleaseName
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareGenerations:
    """Compares the results of two generations of a release at the same input, and writes what takes the old to the new."""

    release: ReleaseName
    old: int
    new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteClearing:
    """Writes a tombstone for every key of the old generation's result, for consumers that go on in the new one's."""

    release: ReleaseName
    old: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendGeneration:
    """Appends to the alias's chain that a release goes on in another result: from the old one's end to, with `met`, where
    the new one stands at the same input; else to its beginning.
    """

    alias: AppName
    number: int
    release: ReleaseName
    old: int
    new: int
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitFollowers:
    """Waits until no registered follower of `alias` needs what lies before switch `number`."""

    alias: AppName
    number: int
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Sets what is wanted of a release. `before`: what was when the plan was made. Begun with something else wanted by then,
    it is refused; an operation that changes nothing goes back to it.
    """

    release: ReleaseName
    wanted: Literal["running", "stopped"]
    before: Literal["running", "stopped"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Starts the driver, unless one runs, and waits until it is heard of."""

    release: ReleaseName
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitStopped:
    """Waits until the driver has stopped at a boundary and given up its lease."""

    release: ReleaseName
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetState:
    """Sets a release's state."""

    release: ReleaseName
    state: ReleaseState


@dataclass(frozen=True, slots=True, kw_only=True)
class Align:
    """Pauses `release` at a boundary, to meet `other`."""

    release: ReleaseName
    other: ReleaseName
    switch: int | None
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagBoundary:
    """Has `other` flag its first boundary that `release` can meet; with a switch it is the barrier."""

    release: ReleaseName
    other: ReleaseName
    switch: int | None
    alias: AppName | None
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet:
    """Waits until `release` stands at exactly the flagged boundary of `other`, and goes on."""

    release: ReleaseName
    other: ReleaseName
    switch: int | None
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Takes the right to write from a release whose driver is dead or stuck: its last committed batch is its end."""

    release: ReleaseName


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseStart:
    """Chooses where consumers of a stream go on in `release`, whose boundaries are not those of the fenced `other`."""

    release: ReleaseName
    other: ReleaseName
    allowed: Literal["gap", "duplicates", "either"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Folds both results as of the flagged boundary, or of where each one stands if one is dead, compares them, and
    records what it found as evidence.
    """

    live: ReleaseName
    new: ReleaseName
    tolerance: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareDelta:
    """Does of `WriteDelta` or `VerifyStream` what can be done before anyone is asked to meet: consumers then wait for what comes after it."""

    evidence: OperationId
    old: ReleaseName
    new: ReleaseName


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDelta:
    """Writes what changed since the evidence cut, so that table consumers get from the old result to the new one."""

    evidence: OperationId
    old: ReleaseName
    new: ReleaseName
    max_changed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyStream:
    """Compares what two streams got since the evidence cut, record by record, before consumers change over."""

    evidence: OperationId
    old: ReleaseName
    new: ReleaseName
    max_changed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSwitch:
    """Appends the switch to the alias's chain: the one step that moves consumers. Refused if anything changed."""

    alias: AppName
    number: int
    old: ReleaseName | None
    new: ReleaseName
    evidence: OperationId | None
    allowed: Literal["gap", "duplicates"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortSwitch:
    """Writes that a switch will not happen: followers at its barrier go on with the old result."""

    alias: AppName
    operation: OperationId


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """Deletes a topic that the registry records as the release's own."""

    name: TopicName


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Deletes the release's consumer group."""

    group: ReleaseName


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFiles:
    """Deletes checkpoints, run folder, what its comparisons found and, if no other release has the same, the frozen code."""

    release: ReleaseName
    code_digest: Digest | None
    evidence: tuple[OperationId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCheckpoint:
    """Deletes the checkpoints of a generation that is over."""

    release: ReleaseName
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Marks the unread entries at these offsets of the registry as ones that don't count."""

    offsets: tuple[int, ...]


# what a reset and its undo are made of, besides what others have, too
GenerationStage = (
    BeginGeneration | FinishBatch | Seize | GiveBack | InheritState | Tombstone | Reach | CompareGenerations | WriteClearing
    | AppendGeneration | AwaitFollowers | DeleteCheckpoint
)  # fmt: skip

Stage = (
    StoreCode | CreateTopic | RecordRelease | BeginGeneration | Want | Launch | AwaitStopped | SetState | Align | FlagBoundary | Meet
    | Fence | ChooseStart | Compare | PrepareDelta | WriteDelta | VerifyStream | AppendSwitch | AbortSwitch | DeleteTopic | DeleteGroup
    | DeleteFiles | FinishBatch | Seize | GiveBack | InheritState | Tombstone | Reach | CompareGenerations | WriteClearing
    | AppendGeneration | AwaitFollowers | DeleteCheckpoint | Repair | AcceptHistory
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
        case AcceptHistory():
            return f"record that {stage.release} may lack input {told(stage.missing)}"
        case BeginGeneration():
            how = (
                "its own state, where it ended"
                if stage.again
                else "the state as it is"
                if stage.keeps
                else "fresh state"
            )
            until = ", up to the given end" if stage.until and not stage.then else ""
            until = ", and leave out the given record" if stage.then else until
            return f"begin generation {stage.generation} of {stage.release}{' again' if stage.again else ''}, from {how}{until}"
        case FinishBatch():
            return f"finish the batch of {stage.release} that Kafka has and Spark's log has not"
        case Seize():
            return f"take the right to run {stage.release}, so that nobody starts it meanwhile"
        case GiveBack():
            return f"give the right to run {stage.release} back"
        case InheritState():
            return f"keep generation {stage.old}'s state of {stage.release} for generation {stage.generation}, by hard links, at the new position"
        case Tombstone():
            return f"write a tombstone for each key of the result of {stage.release}"
        case Reach():
            return f"wait until {stage.release} has read to exactly where the old result ended"
        case CompareGenerations():
            return f"compare the results of generations {stage.old} and {stage.new} of {stage.release} there, for consumers of tables"
        case WriteClearing():
            return (
                f"write a tombstone for each key of generation {stage.old} of {stage.release}, for consumers that go on"
            )
        case AppendGeneration():
            return f"append switch {stage.number} to {stage.alias}: from generation {stage.old} of {stage.release} to {stage.new}"
        case AwaitFollowers():
            return f"wait until the followers of {stage.alias} have passed switch {stage.number}, at most {stage.timeout_s:g} s"
        case Repair():
            return f"ignore {len(stage.offsets)} entries of the registry for good: offsets {', '.join(map(str, stage.offsets))}"
        case DeleteCheckpoint():
            return f"delete the checkpoint of generation {stage.generation} of {stage.release}"
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
            return f"compare the results of {stage.live} and {stage.new} as of there, and record the evidence"
        case PrepareDelta():
            return f"read what has changed since evidence {stage.evidence} so far, while consumers read on"
        case WriteDelta():
            return f"write what changed since evidence {stage.evidence} for consumers of tables"
        case VerifyStream():
            return f"compare what both streams got since evidence {stage.evidence}"
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


def kind_of(stage: Stage) -> str:
    """The kind of a stage as the journal keeps it, so that it never changes."""
    return type(stage).__name__


def to_journal(stage: Stage) -> dict[str, Any]:
    """A stage as the journal keeps it."""
    return {"stage": kind_of(stage), **asdict(stage)}


def from_journal(data: Mapping[str, Any]) -> Stage:
    """The stage that `to_journal` wrote. Raises SwitchyardError for one that this version doesn't know, or a name in it that
    can't be one; and for one with code, which comes from the operator's folder alone: no journal is written with it.
    """
    kinds = {kind.__name__: kind for kind in get_args(Stage)}
    kind = kinds.get(data.get("stage", ""))
    if kind is StoreCode:
        raise SwitchyardError("the journal has a stage that stores code: no version writes such a journal",
                              fix="abandon that operation: `switchyard abandon`; `switchyard log` says who entered it")  # fmt: skip
    if kind is None:
        raise SwitchyardError(f"the journal has a stage {data.get('stage')} that this version doesn't know",
                              fix="resume with the version that began it, or abandon it")  # fmt: skip
    try:
        stage: Stage = TypeAdapter(kind).validate_python(
            {name: value for name, value in data.items() if name != "stage"}
        )
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, wrong["loc"]))
        raise SwitchyardError(f"the journal has a stage {data['stage']} that can't be read: {where}: {wrong['msg']}",
                              fix="abandon that operation: `switchyard abandon`") from error  # fmt: skip
    return stage
