"""The registry's entries, and the state that they fold to. Pure: the log itself is `pipelines.kafka.registry`.

Every entry says when, who, for which operation and why: the log of entries is the audit trail.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from pipelines.model.base import Frozen
from pipelines.model.missing import Gap
from pipelines.model.names import (
    AppName,
    Digest,
    GroupName,
    ModuleName,
    OperationId,
    ReleaseName,
    TopicName,
    release_name,
    result_topic,
)
from pipelines.model.positions import ResultPosition, SourcePosition, Span
from pipelines.model.progress import Progress
from pipelines.model.unread import MUST_UNDERSTAND, SCHEMA_VERSION, Unread, opened, reason_of, refuse_huge, unread

ReleaseState = Literal["staged", "hydrating", "ready", "live", "standby", "retired", "failed", "aborted"]
Wanted = Literal["running", "stopped"]


class Entry(Frozen):
    """The fields of every entry. `at_ms`: milliseconds since the epoch by the writer's clock.

    A field with its default value isn't written, so that an older version can read the entry. So a default never
    changes. A kind whose fields change in any other way gets the next `schema_version`.

    `must_understand`: a process that can't read such an entry must wait. Set it for a new version or a new kind that
    decides who may write or where consumers read. Such an entry names its `release`, `releases` or `alias`; if it names
    none, it concerns all. `decides`: the same for kinds of the first version, which can't say it in the entry, as that
    version would not read it. A malformed entry of such a kind holds what it names.
    """

    schema_version: ClassVar[int] = 1
    must_understand: ClassVar[bool] = False
    decides: ClassVar[bool] = False

    at_ms: int = 0
    actor: str = ""
    op: OperationId | None = None
    reason: str | None = None


class InputSpec(Frozen):
    """An input as staged: its topic, and its number of partitions then."""

    topic: TopicName
    partitions: int


class ReleaseSpec(Frozen):
    """A release as staged; it never changes.

    `code_digest`: SHA-256 of the frozen code; `module` is the module in it that defines the app. `schema_ddl`: the
    result's columns, Spark DDL. `correction`: why the same code runs again, if it does.
    """

    release: ReleaseName
    app: AppName
    version: int
    module: ModuleName
    code_digest: Digest
    settings: dict[str, Any]
    inputs: dict[str, InputSpec]
    table: bool
    key: tuple[str, ...]
    partitions: int
    schema_ddl: str
    suite: ModuleName | None
    watermark: str | None
    comparable: str
    reset_allowed: bool = True
    change: Literal["first", "none", "settings", "code", "schema"]
    correction: str | None = None
    platform: str = ""

    @model_validator(mode="after")
    def _is_of_its_app(self) -> Self:
        if self.release != release_name(self.app, self.version):
            raise ValueError(f"version {self.version} of {self.app} is not called {self.release}")
        return self

    @property
    def topics(self) -> dict[str, str]:
        """Source name -> topic, in the order of the app's definition."""
        return {source: given.topic for source, given in self.inputs.items()}


class Staged(Entry):
    kind: Literal["staged"] = "staged"
    spec: ReleaseSpec


class GenerationStarted(Entry):
    """Generation `generation` of a release starts at `start`; a generation that ran before resumes where it ended.

    `result`: the generation whose topic it writes, None: its own. `ended`: the last progress record of the generation
    that ends with this entry. `seed`: its first progress record, if it continues an earlier state; with batch -1 it
    continues from nothing. `meet`: first it reads to exactly the boundary of `ended`, and reports that. `until`: where
    a bounded replay stops; or, with `then`, where it jumps to `then` and leaves out what is in between. `processed`:
    input whose results consumers may already have: what comes from it is marked as a replay. `cleared`: the result that
    it continues was emptied by tombstones. `max_records_per_batch`: replaces the setting until the replay is over and
    the driver starts again.
    """

    decides: ClassVar[bool] = True

    kind: Literal["generation"] = "generation"
    release: ReleaseName
    generation: int
    start: SourcePosition
    result: int | None = None
    ended: Progress | None = None
    seed: Progress | None = None
    meet: bool = False
    cleared: bool = False
    until: SourcePosition | None = None
    then: SourcePosition | None = None
    processed: tuple[Span, ...] = ()
    max_records_per_batch: int | None = None

    @property
    def end(self) -> SourcePosition | None:
        """Where a bounded replay stops; None: it isn't bounded."""
        return self.until if self.then is None else None

    @property
    def left_out(self) -> Span | None:
        """The input that it leaves out."""
        return Span(start=self.until, end=self.then) if self.until is not None and self.then is not None else None


class StateSet(Entry):
    kind: Literal["state"] = "state"
    release: ReleaseName
    state: ReleaseState


class WantedSet(Entry):
    kind: Literal["wanted"] = "wanted"
    release: ReleaseName
    wanted: Wanted


class Holder(Frozen):
    """A process that holds a lease. `started`: its start time as the kernel counts it, as pids are reused."""

    host: str
    boot_id: str
    pid: int
    started: int


class LeaseTaken(Entry):
    """Only the newest token of a release may write."""

    decides: ClassVar[bool] = True

    kind: Literal["lease"] = "lease"
    release: ReleaseName
    token: int
    holder: Holder


class LeaseEnded(Entry):
    """The holder of `token` stopped by itself."""

    kind: Literal["lease-ended"] = "lease-ended"
    release: ReleaseName
    token: int


class Opened(Entry):
    """An operation starts. It blocks other operations on `releases` until it is closed or its deadline has passed.

    `name`: the kind of the operation. `plan`: free-form, so that each version ignores what it doesn't know in it.
    """

    kind: Literal["opened"] = "opened"
    id: OperationId
    name: str
    releases: tuple[ReleaseName, ...]
    alias: AppName | None = None
    deadline_ms: int
    plan: dict[str, Any] = Field(default_factory=dict)


class Carried(Entry):
    """Process `holder` starts or resumes operation `id`. While it lives, no other process does."""

    kind: Literal["carried"] = "carried"
    id: OperationId
    holder: Holder


class Proposed(Entry):
    """A plan that waits for approval, under its id. It blocks nothing."""

    kind: Literal["proposed"] = "proposed"
    id: OperationId
    name: str
    releases: tuple[ReleaseName, ...]
    alias: AppName | None = None
    plan: dict[str, Any] = Field(default_factory=dict)


class Closed(Entry):
    kind: Literal["closed"] = "closed"
    id: OperationId
    outcome: Literal["done", "failed", "abandoned", "expired"]
    detail: str = ""


class AlignOrdered(Entry):
    """Asks the driver of `release` to pause at a boundary and to meet `other` at one of its boundaries.

    Valid until operation `id` is closed or its switch is resolved. `switch`: number of the switch, None for evidence.
    """

    kind: Literal["align"] = "align"
    id: OperationId
    release: ReleaseName
    other: ReleaseName
    switch: int | None


class MarkOrdered(Entry):
    """Asks the driver of `release` to flag the first boundary whose predecessor is at or past `past`.

    With `switch` it announces that switch of `alias`: followers wait at the flagged boundary until the registry says
    `promoted` or `switch-aborted`; nothing else lets them pass.
    """

    kind: Literal["mark"] = "mark"
    id: OperationId
    release: ReleaseName
    past: SourcePosition
    switch: int | None
    alias: AppName | None
    deadline_ms: int


class DeltaSegment(Frozen):
    """A range of a delta topic's only partition."""

    topic: TopicName
    start: int
    end: int


class Switch(Frozen):
    """One link of an alias's chain: from `old` up to `old_end`, the delta, then `new` from `new_start` on.

    Numbers start at 1; number 1 has no old release. `delta`: in the order of delivery; a key delivered by an
    earlier segment is left out of the later ones. `cut`: the input position that both had.
    """

    number: int
    old: ReleaseName | None
    old_generation: int | None
    old_end: ResultPosition | None
    new: ReleaseName
    new_generation: int
    new_start: ResultPosition
    delta: tuple[DeltaSegment, ...] = ()
    cut: SourcePosition | None = None
    allowed: Literal["gap", "duplicates"] | None = None


class Promoted(Entry):
    decides: ClassVar[bool] = True

    kind: Literal["promoted"] = "promoted"
    alias: AppName
    switch: Switch


class SwitchAborted(Entry):
    kind: Literal["switch-aborted"] = "switch-aborted"
    # empty if the operation names none
    alias: AppName | Literal[""]
    id: OperationId


class EvidenceRecorded(Entry):
    """What a diff found at an evidence cut. `forward`, `backward`: the delta from live to new and back.

    `apart`: one release was down and the other stood elsewhere. Then the delta is still exact, but the counts say
    little.
    """

    kind: Literal["evidence"] = "evidence"
    id: OperationId
    live: ReleaseName
    live_generation: int
    new: ReleaseName
    new_generation: int
    cut: SourcePosition
    live_result: ResultPosition
    new_result: ResultPosition
    summary: dict[str, Any]
    forward: DeltaSegment | None = None
    backward: DeltaSegment | None = None
    apart: bool = False


class VerdictRecorded(Entry):
    """What the gate found, for a release, a generation and the checked range of the result."""

    kind: Literal["verdict"] = "verdict"
    release: ReleaseName
    generation: int
    evidence: OperationId | None
    upto: ResultPosition
    passed: int
    failed: int
    errored: int
    failures: tuple[str, ...] = ()
    # the outcome of each check that has not passed: failed, errored, skipped; earlier builds wrote none
    outcomes: dict[str, str] = Field(default_factory=dict)
    docs: str | None = None
    volume_tolerance: float | None = None


class ReadyRecorded(Entry):
    """`wait` found this generation of the release hydrated."""

    kind: Literal["ready"] = "ready"
    release: ReleaseName
    generation: int
    facts: dict[str, Any] = Field(default_factory=dict)

    @property
    def rate(self) -> float | None:
        """Records per second while it hydrated; None if that was not measured."""
        rate = self.facts.get("records_per_s")
        return float(rate) if isinstance(rate, int | float) and rate else None


class HistoryAccepted(Entry):
    """Someone has accepted that a release lacks input that the live one has read, or that it should have read."""

    kind: Literal["history-accepted"] = "history-accepted"
    release: ReleaseName
    missing: tuple[Gap, ...]


class TopicsKnown(Entry):
    """The ids of a release's topics, topic -> id: of the inputs of `generation`, and of the release's own topics.

    For an input of a generation the first known id stays. An operation may recreate one of the release's own topics; it
    then writes the new id.
    """

    kind: Literal["topics"] = "topics"
    release: ReleaseName
    generation: int
    inputs: dict[TopicName, str] = Field(default_factory=dict)
    own: dict[TopicName, str] = Field(default_factory=dict)


class FollowerRegistered(Entry):
    kind: Literal["follower"] = "follower"
    alias: AppName
    group: GroupName


class FollowerRemoved(Entry):
    kind: Literal["follower-removed"] = "follower-removed"
    alias: AppName
    group: GroupName


class Repaired(Entry):
    """The unread entries at these offsets no longer count: nothing waits for them, and no one is told of them."""

    kind: Literal["repaired"] = "repaired"
    offsets: tuple[int, ...]


AnyEntry = Annotated[
    Staged | GenerationStarted | StateSet | WantedSet | LeaseTaken | LeaseEnded | Opened | Carried | Proposed | Closed
    | AlignOrdered | MarkOrdered | Promoted | SwitchAborted | EvidenceRecorded | VerdictRecorded | ReadyRecorded
    | FollowerRegistered | FollowerRemoved | Repaired | HistoryAccepted | TopicsKnown,
    Field(discriminator="kind"),
]  # fmt: skip
# version 0.1 fails on a kind that it doesn't know. These kinds are written as asides, which it ignores
ASIDE = (HistoryAccepted, TopicsKnown)
_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyEntry)
_KINDS: dict[str, type[Entry]] = {each.model_fields["kind"].default: each for each in get_args(get_args(AnyEntry)[0])}


def encode(entry: Entry) -> bytes:
    """An entry as written to the log. Refuses an entry that couldn't be read back, so that no reader has to."""
    fields = json.loads(entry.model_dump_json(exclude_defaults=True))
    # these fields are free-form: models in them are written with their defaults, as nothing else would restore them
    free = json.loads(entry.model_dump_json(include={"plan", "facts", "summary"}))
    fields |= {name: value for name, value in free.items() if name in fields}
    said: dict[str, Any] = {"kind": type(entry).model_fields["kind"].default}
    if entry.schema_version != 1:
        said[SCHEMA_VERSION] = entry.schema_version
    if entry.must_understand:
        said[MUST_UNDERSTAND] = True
    data = json.dumps({**said, **fields}).encode()
    decode(data)
    return data


def decode(data: bytes) -> Entry:
    """The entry that `encode` wrote, in this version or another. Raises ValueError with the reason for anything else.

    An entry of a known kind with a newer schema is read without unknown fields, unless it must be understood.
    """
    refuse_huge(data)
    try:
        entry: Entry = _ADAPTER.validate_json(data)
        return entry
    except ValidationError as error:
        wrong = error
    envelope = opened(data)
    kind = envelope.fields.get("kind")
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise ValueError("this version doesn't know its kind")
    newer = envelope.version > known.schema_version
    if newer and envelope.must:
        raise ValueError(
            f"it has schema version {envelope.version}, but this version of Switchyard knows only {known.schema_version}"
        )
    if not newer and envelope.version == 1 and not envelope.must:
        raise ValueError(reason_of(wrong))
    try:
        return known.model_validate_json(json.dumps(envelope.fields), extra="ignore" if newer else "forbid")
    except ValidationError as error:
        raise ValueError(reason_of(error)) from None


def read(data: bytes, offset: int) -> Entry | Unread:
    """The entry at `offset` of the log, or what is known about one that can't be read."""
    try:
        return decode(data)
    except ValueError as error:
        return as_unread(data, offset, str(error))


def as_unread(data: bytes, offset: int, reason: str) -> Unread:
    """What is known about an entry that can't be read or folded. One that decides must be understood."""
    found = unread(data, offset, reason)
    kind = _KINDS.get(found.kind or "")
    decides = kind is not None and kind.decides and bool(found.about)
    return replace(found, must=True) if decides else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What the registry knows about a release."""

    spec: ReleaseSpec
    state: ReleaseState = "staged"
    wanted: Wanted = "stopped"
    # all generations by number, as they were first started
    generations: Mapping[int, GenerationStarted] = field(default_factory=dict)
    # the current generation, as it was last started
    under: GenerationStarted | None = None
    # generation -> its last progress record, for those that have ended
    ended: Mapping[int, Progress] = field(default_factory=dict)
    token: int = 0
    lease: LeaseTaken | None = None
    lease_ended: bool = True
    ready: ReadyRecorded | None = None
    verdict: VerdictRecorded | None = None
    failure: str | None = None
    staged_ms: int = 0
    # when its state was last set
    state_ms: int = 0
    # generation -> when it last ended
    ended_ms: Mapping[int, int] = field(default_factory=dict)
    # the best rate at which it has hydrated
    records_per_s: float | None = None
    # missing input that someone has accepted
    accepted: tuple[Gap, ...] = ()
    # generation -> input topic -> the topic's id, where known
    input_ids: Mapping[int, Mapping[TopicName, str]] = field(default_factory=dict)
    # the release's own topics -> their ids
    own_ids: Mapping[TopicName, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.spec.release

    @property
    def generation(self) -> int:
        """Number of the current generation; 0 before the first."""
        return self.under.generation if self.under else 0

    @property
    def start(self) -> SourcePosition | None:
        """The start of the input that the current state comes from; of a kept state, where that state started."""
        first = self._first_of_state
        return first.start if first is not None else None

    @property
    def begun_ms(self) -> int:
        """When the current state started, at `start`; milliseconds since the epoch, 0: not yet."""
        first = self._first_of_state
        return first.at_ms if first is not None else 0

    @property
    def _first_of_state(self) -> GenerationStarted | None:
        """The generation in which the current state started. A seed comes from an earlier generation, so this ends."""
        number, begun = self.generation, self.generations.get(self.generation)
        while begun is not None and begun.seed is not None and begun.seed.boundary.batch_id >= 0:
            if begun.ended is None or begun.ended.generation >= number:
                break
            number, begun = begun.ended.generation, self.generations.get(begun.ended.generation)
        return begun

    @property
    def result_topic(self) -> str:
        """The topic that the current generation writes."""
        return self.topic_of(self.generation)

    @property
    def bounded(self) -> bool:
        """Whether the current generation is a replay that stops."""
        return self.under is not None and self.under.end is not None

    def topic_of(self, generation: int) -> str:
        """The topic that a generation writes, or wrote."""
        known = self.generations.get(generation)
        return result_topic(self.name, (known.result if known else None) or generation)

    def end_of(self, topic: str) -> ResultPosition | None:
        """Where a result that is no longer written ended; None for the current one, and for another release's topic."""
        if topic == self.result_topic:
            return None
        last = self.last_of(topic)
        return self.ended[last].result if last is not None else None

    def last_of(self, topic: str) -> int | None:
        """The generation that ended last of those that wrote `topic`. After an undo it may have a lower number."""
        wrote = [g for g in self.ended if self.topic_of(g) == topic]
        # a result only grows
        return max(wrote, key=lambda g: sum(self.ended[g].result.topics.get(topic, {}).values()), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation, open or closed."""

    opened: Opened
    carrier: Holder | None = None
    align: AlignOrdered | None = None
    mark: MarkOrdered | None = None
    aborted: bool = False
    promoted: Promoted | None = None
    closed: Closed | None = None

    @property
    def id(self) -> str:
        return self.opened.id

    @property
    def resolved(self) -> bool:
        """Whether the operation is over for followers: none may wait for its barrier any more."""
        return self.aborted or self.promoted is not None or self.closed is not None

    def blocks(self, release: str) -> bool:
        """Whether another operation on `release` has to wait for this one."""
        return self.closed is None and release in self.opened.releases


# The log keeps everything; the state keeps only this many. Whoever needs more reads the log.
CLOSED_KEPT = 200
PROPOSALS_KEPT = 200
EVIDENCE_KEPT = 10
BARRIERS_KEPT = 100
UNREAD_KEPT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryState:
    """What the registry says, folded from its entries in order. Its size depends on what exists, not on what was done.

    `operations`: open ones, and the newest `CLOSED_KEPT` closed ones, or up to twice as many. `past`: older ones,
    without their plans, if a follower may still ask for them (the last `BARRIERS_KEPT` barriers of a release) or if
    they started a generation. `evidence`: the newest `EVIDENCE_KEPT` per pair of releases. `promoted`: alias -> the
    entry of its newest switch. `unread`: entries that this version can't read and nobody has repaired: all that must be
    understood, and the newest `UNREAD_KEPT` others; `unread_before`: how many others came before those.
    """

    releases: Mapping[ReleaseName, Release] = field(default_factory=dict)
    operations: Mapping[OperationId, Operation] = field(default_factory=dict)
    past: Mapping[OperationId, Operation] = field(default_factory=dict)
    chains: Mapping[AppName, tuple[Switch, ...]] = field(default_factory=dict)
    promoted: Mapping[AppName, Promoted] = field(default_factory=dict)
    evidence: tuple[EvidenceRecorded, ...] = ()
    followers: Mapping[AppName, tuple[GroupName, ...]] = field(default_factory=dict)
    proposals: Mapping[OperationId, Proposed] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    unread_before: int = 0

    def not_understood(self, name: str) -> Unread | None:
        """The first unread entry that must be understood and may be about release or alias `name`, which then waits."""
        return next((u for u in self.unread if u.must and u.concerns(name)), None)

    @property
    def known_operations(self) -> Mapping[str, Operation]:
        """All operations that the state still has, including `past`."""
        return ChainMap(self.operations, self.past)  # type: ignore[arg-type]

    def live(self, alias: str) -> Switch | None:
        """The newest link of the alias's chain; None before the first promotion."""
        chain = self.chains.get(alias, ())
        return chain[-1] if chain else None

    def of_app(self, app: str) -> list[Release]:
        """An app's releases by version."""
        return sorted((r for r in self.releases.values() if r.spec.app == app), key=lambda r: r.spec.version)

    def blocking(self, release: str) -> Operation | None:
        """The open operation that blocks `release`, if any."""
        return next((o for o in self.operations.values() if o.blocks(release)), None)

    def standing_align(self, release: str) -> AlignOrdered | None:
        """The open order to align for `release`."""
        return next((o.align for o in self.operations.values()
                     if o.align and o.align.release == release and not o.resolved), None)  # fmt: skip

    def standing_mark(self, release: str) -> MarkOrdered | None:
        """The open order to flag a boundary for `release`."""
        return next((o.mark for o in self.operations.values()
                     if o.mark and o.mark.release == release and not o.resolved), None)  # fmt: skip


class UnknownRelease(ValueError):
    """An entry moves consumers to or from a release that the state doesn't have."""


def fold(state: RegistryState, entries: Iterable[Entry | Unread], *, strict: bool = False) -> RegistryState:
    """The state after `entries`, in order. An entry about something unknown changes nothing.

    Each table is copied once, when an entry first changes it. So the cost is one copy of the state plus the entries.
    `strict`: raises UnknownRelease for a switch to or from a release that the state doesn't have.
    """
    draft = _Draft(state)
    for entry in entries:
        if strict and isinstance(entry, Promoted):
            _refuse_unknown(entry.switch, draft.table("releases"))
        _apply(draft, entry)
    return draft.state()


def _refuse_unknown(switch: Switch, releases: Mapping[str, Release]) -> None:
    for name in (switch.old, switch.new):
        if name is not None and name not in releases:
            raise UnknownRelease(
                f"it names release {name}, but this version can't read the entry that staged it, or there is none"
            )


class _Draft:
    """A state that entries change in place; the state that it started from doesn't change."""

    def __init__(self, state: RegistryState) -> None:
        self._begun = state
        self._tables: dict[str, Any] = {}
        # releases whose tables of generations this draft has already copied
        self._owned: set[str] = set()
        self._closed: int | None = None
        self._unread: list[Unread] | None = None
        self._unread_before = state.unread_before

    def table(self, name: str) -> dict[str, Any]:
        """A table of the state, copied for this draft."""
        if name not in self._tables:
            self._tables[name] = dict(getattr(self._begun, name))
        found: dict[str, Any] = self._tables[name]
        return found

    def state(self) -> RegistryState:
        tables: dict[str, Any] = dict(self._tables)
        if self._unread is not None:
            tables |= {"unread": tuple(self._unread), "unread_before": self._unread_before}
        if not tables:
            return self._begun
        if "chains" in tables:
            tables["chains"] = {alias: tuple(chain) for alias, chain in tables["chains"].items()}
        if "evidence" in tables:
            kept = sorted((e for pair in tables["evidence"].values() for e in pair), key=lambda e: e[0])
            tables["evidence"] = tuple(e for _, e in kept)
        return replace(self._begun, **tables)

    def release(self, name: str, /, **changes: Any) -> None:
        known = self.table("releases").get(name)
        if known is not None:
            self.table("releases")[name] = replace(known, **changes)

    def operation(self, op: str, /, **changes: Any) -> None:
        known = self.table("operations").get(op)
        if known is not None:
            self.table("operations")[op] = replace(known, **changes)

    def begin(self, entry: GenerationStarted) -> None:
        release = self.table("releases").get(entry.release)
        if release is None:
            return
        tables = {"generations": release.generations, "ended": release.ended, "ended_ms": release.ended_ms}
        if entry.release not in self._owned:
            self._owned.add(entry.release)
            tables = {name: dict(table) for name, table in tables.items()}
        tables["ended"].pop(entry.generation, None)
        if entry.ended is not None:
            if release.generation != entry.generation:
                tables["ended"][release.generation] = entry.ended
            last_ms = tables["ended_ms"].get(entry.ended.generation, 0)
            tables["ended_ms"][entry.ended.generation] = max(last_ms, entry.at_ms)
        # as it was first started
        tables["generations"].setdefault(entry.generation, entry)
        self.release(entry.release, under=entry, ready=None, verdict=None, **tables)

    def know(self, entry: TopicsKnown) -> None:
        known = self.table("releases").get(entry.release)
        if known is None:
            return
        inputs = {**entry.inputs, **known.input_ids.get(entry.generation, {})}
        self.release(
            entry.release,
            input_ids={**known.input_ids, entry.generation: inputs},
            own_ids={**known.own_ids, **entry.own},
        )

    def promote(self, entry: Promoted) -> None:
        if "chains" not in self._tables:
            self._tables["chains"] = {alias: list(chain) for alias, chain in self._begun.chains.items()}
        self._tables["chains"].setdefault(entry.alias, []).append(entry.switch)
        self.table("promoted")[entry.alias] = entry
        if entry.op:
            self.operation(entry.op, promoted=entry)

    def record(self, entry: EvidenceRecorded) -> None:
        """Adds an evidence, and drops the oldest for the same releases."""
        if "evidence" not in self._tables:
            self._tables["evidence"] = {}
            self._numbered = 0
            for known in self._begun.evidence:
                self._record(known)
        self._record(entry)

    def _record(self, entry: EvidenceRecorded) -> None:
        pair = frozenset({(entry.live, entry.live_generation), (entry.new, entry.new_generation)})
        kept = self._tables["evidence"].setdefault(pair, [])
        kept.append((self._numbered, entry))
        self._numbered += 1
        del kept[:-EVIDENCE_KEPT]

    def propose(self, entry: Proposed) -> None:
        proposals = self.table("proposals")
        proposals[entry.id] = entry
        if len(proposals) >= 2 * PROPOSALS_KEPT:
            for op in list(proposals)[:-PROPOSALS_KEPT]:
                del proposals[op]

    def miss(self, entry: Unread) -> None:
        """Keeps an entry that can't be read."""
        found = self.table("operations").get(entry.op or "") if entry.must and not entry.about else None
        if found is not None:
            entry = replace(entry, about=found.opened.releases)
        if self._unread is None:
            self._unread = list(self._begun.unread)
            self._optional = sum(not u.must for u in self._unread)
        self._unread.append(entry)
        self._optional += not entry.must
        if self._optional >= 2 * UNREAD_KEPT:
            over = {u.offset for u in [u for u in self._unread if not u.must][:-UNREAD_KEPT]}
            self._unread = [u for u in self._unread if u.offset not in over]
            self._unread_before += len(over)
            self._optional = UNREAD_KEPT

    def repair(self, entry: Repaired) -> None:
        known = self._begun.unread if self._unread is None else self._unread
        offsets = set(entry.offsets)
        self._unread = [u for u in known if u.offset not in offsets]
        self._optional = sum(not u.must for u in self._unread)
        if not self._unread:
            self._unread_before = 0

    def close(self, entry: Closed) -> None:
        operations = self.table("operations")
        known = operations.get(entry.id)
        if known is None:
            return
        if self._closed is None:
            self._closed = sum(o.closed is not None for o in operations.values())
        if known.closed is None:
            self._closed += 1
        operations[entry.id] = replace(known, closed=entry)
        if self._closed >= 2 * CLOSED_KEPT:
            self._forget()
            self._closed = CLOSED_KEPT

    def _forget(self) -> None:
        """Drops the oldest closed operations from the state, except those that someone may still ask for."""
        operations, past = self.table("operations"), self.table("past")
        closed = [op for op, o in operations.items() if o.closed is not None]
        for op in closed[:-CLOSED_KEPT]:
            known = operations.pop(op)
            self.table("proposals").pop(op, None)
            opened = known.opened.model_copy(update={"plan": {}})
            past[op] = replace(known, opened=opened)
        began = {g.op for r in self.table("releases").values() for g in (*r.generations.values(), r.under) if g}
        barriers: dict[str, list[str]] = {}
        for op, known in past.items():
            if known.mark is not None and known.mark.switch is not None:
                barriers.setdefault(known.mark.release, []).append(op)
        needed = {op for ops in barriers.values() for op in ops[-BARRIERS_KEPT:]} | began
        for op in [op for op in past if op not in needed]:
            del past[op]


def _apply(draft: _Draft, entry: Entry | Unread) -> None:
    match entry:
        case Unread():
            draft.miss(entry)
        case Repaired():
            draft.repair(entry)
        case Staged(spec=spec):
            draft.table("releases")[spec.release] = Release(spec=spec, staged_ms=entry.at_ms)
        case GenerationStarted():
            draft.begin(entry)
        case StateSet(release=name):
            failure = entry.reason if entry.state == "failed" else None
            draft.release(name, state=entry.state, failure=failure, state_ms=entry.at_ms)
        case WantedSet(release=name):
            draft.release(name, wanted=entry.wanted)
        case LeaseTaken(release=name):
            draft.release(name, token=entry.token, lease=entry, lease_ended=False)
        case LeaseEnded(release=name):
            known = draft.table("releases").get(name)
            if known is not None and known.token == entry.token:
                draft.release(name, lease_ended=True)
        case ReadyRecorded(release=name):
            known = draft.table("releases").get(name)
            rates = [r for r in (known.records_per_s if known else None, entry.rate) if r is not None]
            draft.release(name, ready=entry, records_per_s=max(rates, default=None))
        case VerdictRecorded(release=name):
            draft.release(name, verdict=entry)
        case Opened():
            draft.table("operations")[entry.id] = Operation(opened=entry)
        case Carried(id=op):
            draft.operation(op, carrier=entry.holder)
        case Proposed():
            draft.propose(entry)
        case Closed():
            draft.close(entry)
        case AlignOrdered(id=op):
            draft.operation(op, align=entry)
        case MarkOrdered(id=op):
            draft.operation(op, mark=entry)
        case SwitchAborted(id=op):
            draft.operation(op, aborted=True)
        case Promoted():
            draft.promote(entry)
        case HistoryAccepted(release=name):
            known = draft.table("releases").get(name)
            if known is not None:
                draft.release(name, accepted=(*known.accepted, *entry.missing))
        case TopicsKnown():
            draft.know(entry)
        case EvidenceRecorded():
            draft.record(entry)
        case FollowerRegistered(alias=alias, group=group):
            groups = draft.table("followers").get(alias, ())
            if group not in groups:
                draft.table("followers")[alias] = (*groups, group)
        case FollowerRemoved(alias=alias, group=group):
            groups = draft.table("followers").get(alias, ())
            draft.table("followers")[alias] = tuple(g for g in groups if g != group)
        case _:
            raise AssertionError(f"no rule for a registry entry of kind {type(entry).__name__}")
