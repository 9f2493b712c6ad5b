"""The registry's entries. Every entry says when, who, for which operation and why: the log of entries is the audit trail.

What they fold to is in `pipelines.model.registry`; the log itself is `pipelines.kafka.registry`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Required, Self, get_args

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from pipelines.model.base import Frozen
from pipelines.model.missing import Gap
from pipelines.model.names import (
    SOURCE_COLUMNS,
    AppName,
    Digest,
    GroupName,
    ModuleName,
    OperationId,
    Ordinal,
    ReleaseName,
    ResultName,
    TopicName,
    release_name,
)
from pipelines.model.positions import ResultPosition, SourcePosition, Span, left_out_of, replay_end, told_offsets
from pipelines.model.progress import Progress
from pipelines.model.unread import MUST_UNDERSTAND, SCHEMA_VERSION, Unread, opened, reason_of, refuse_huge, unread

# a quoted name at the start of a DDL or after a comma, and its type up to the next one
_COLUMN = re.compile(r"(?:^|, )`((?:[^`]|``)+)` (.+?)(?=, `|$)")

ReleaseState = Literal["staged", "hydrating", "ready", "live", "standby", "retired", "failed"]
Wanted = Literal["running", "stopped"]
# of a topic: whoever reads it lists them, so a forged number must not fill the memory
Partitions = Annotated[int, Field(ge=1, le=100_000)]
Count = Annotated[int, Field(ge=0, strict=True)]
# the program, besides the commands, in which an operation runs
Via = Literal["dagster"]


class Entry(Frozen):
    """The fields of every entry. `at_ms`: milliseconds since the epoch by the broker's clock, as its writer knew it. Earlier
    builds wrote the time of their own clock.

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
    """An input as staged: its topic, and its number of partitions then. `release`: the one whose result it is."""

    topic: TopicName
    partitions: Partitions
    release: ReleaseName | None = None


class StaticTableSpec(Frozen):
    """A static table as staged: the rows that `topic` had when it was read up to `position`, partition -> next offset.

    `digest`: SHA-256 of its file, which has `rows` rows in `size_bytes` bytes. `topic_id`: which topic of that name it was.
    `malformed`: how many records could not be read, and so are no rows.
    """

    topic: TopicName
    topic_id: str
    position: dict[int, int]
    rows: Count
    size_bytes: Count
    digest: Digest
    malformed: Count = 0

    def in_words(self) -> str:
        """`1,204 rows, read up to rates[0] 602, rates[1] 640`."""
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        return f"{rows}, read up to {told_offsets(self.topic, self.position)}"


class ResultSpec(Frozen):
    """A result as staged. `schema_ddl`: its columns, Spark DDL. `suite`: the expectations that check it. `avro`: the Avro
    schema of its values, None: they are JSON. `final`: a row of this table comes once, when the watermark has passed it; the
    entries of earlier builds don't say it.
    """

    table: bool
    key: tuple[str, ...]
    partitions: Partitions
    schema_ddl: str
    suite: ModuleName | None
    avro: str | None = None
    final: bool = False

    @property
    def types(self) -> dict[str, str]:
        """Column -> its type, as Spark names it. Spark's DDL of a schema quotes only columns, not the fields within."""
        return {name.replace("``", "`"): kind for name, kind in _COLUMN.findall(self.schema_ddl)}

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return list(self.types)

    @property
    def value(self) -> list[str]:
        """The columns of a record's value. A stream's source columns become a header instead."""
        source = () if self.table or not set(SOURCE_COLUMNS) <= set(self.columns) else SOURCE_COLUMNS
        return [name for name in self.columns if name not in (*self.key, *source)]

    @property
    def written(self) -> dict[str, str]:
        """The columns of its records, those of the key first: column -> its type, as Spark names it."""
        types = self.types
        return {name: types[name] for name in (*self.key, *self.value) if name in types}

    def in_words(self) -> str:
        """`table by ticker, day`, or `stream` without a key."""
        kind = "table" if self.table else "stream"
        return f"{kind} by {', '.join(self.key)}" if self.key else kind


class ReleaseSpec(Frozen):
    """A release as staged; it never changes.

    `code_digest`: SHA-256 of the frozen code; `module` is the module in it that defines the app. `results`: for an app
    with several results, each by name. `table`, `key`, `partitions`, `schema_ddl`, `suite`, `avro` and `final` describe the
    only result, or the first one; read them through `outputs`. `correction`: why the same code runs again, if it does.
    `inputs`: the sources. `static_tables`: the inputs whose rows were read at staging; no position counts them.
    """

    release: ReleaseName
    app: AppName
    version: Ordinal
    module: ModuleName
    code_digest: Digest
    settings: dict[str, Any]
    inputs: dict[str, InputSpec]
    table: bool
    key: tuple[str, ...]
    partitions: Partitions
    schema_ddl: str
    suite: ModuleName | None
    watermark: str | None
    comparable: str
    reset_allowed: bool = True
    change: Literal["first", "none", "settings", "code", "schema"]
    correction: str | None = None
    platform: str = ""
    results: dict[ResultName, ResultSpec] = Field(default_factory=dict)
    avro: str | None = None
    final: bool = False
    static_tables: dict[str, StaticTableSpec] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_of_its_app(self) -> Self:
        if self.release != release_name(self.app, self.version):
            raise ValueError(f"version {self.version} of {self.app} is not called {self.release}")
        return self

    @property
    def outputs(self) -> dict[str, ResultSpec]:
        """Result name -> the result, in the order of the app's definition; the only result has an empty name."""
        if self.results:
            return self.results
        only = ResultSpec(
            table=self.table,
            key=self.key,
            partitions=self.partitions,
            schema_ddl=self.schema_ddl,
            suite=self.suite,
            avro=self.avro,
            final=self.final,
        )
        return {"": only}

    @property
    def tables(self) -> frozenset[str]:
        """The names of the results that are tables."""
        return frozenset(name for name, result in self.outputs.items() if result.table)

    @property
    def streams(self) -> frozenset[str]:
        """The names of the results that are streams."""
        return frozenset(self.outputs) - self.tables

    @property
    def suites(self) -> dict[str, str]:
        """Result name -> its suite, of the results that have one."""
        return {name: result.suite for name, result in self.outputs.items() if result.suite is not None}

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
    input whose results consumers may already have; results from it are marked as a replay. `cleared`: the result that
    it continues was emptied by tombstones. `max_records_per_batch`: replaces the setting until the replay is over and
    the driver starts again.
    """

    decides: ClassVar[bool] = True

    kind: Literal["generation"] = "generation"
    release: ReleaseName
    generation: Ordinal
    start: SourcePosition
    result: Ordinal | None = None
    ended: Progress | None = None
    seed: Progress | None = None
    meet: bool = False
    cleared: bool = False
    until: SourcePosition | None = None
    then: SourcePosition | None = None
    processed: tuple[Span, ...] = ()
    max_records_per_batch: Annotated[int, Field(ge=1)] | None = None

    @property
    def end(self) -> SourcePosition | None:
        """Where a bounded replay stops; None: it isn't bounded."""
        return replay_end(self.until, self.then)

    @property
    def left_out(self) -> Span | None:
        """The input that it leaves out."""
        return left_out_of(self.until, self.then)


class StateSet(Entry):
    kind: Literal["state"] = "state"
    release: ReleaseName
    state: ReleaseState


class WantedSet(Entry):
    kind: Literal["wanted"] = "wanted"
    release: ReleaseName
    wanted: Wanted


class Holder(Frozen):
    """A process that holds a lease or carries out an operation. `started`: its start time as the kernel counts it, as pids
    are reused. `namespaces`: those in which its pid means something; entries of earlier builds don't say it.
    """

    host: str
    boot_id: str
    pid: int
    started: int
    namespaces: str = ""


class LeaseTaken(Entry):
    """Only the newest token of a release may write."""

    decides: ClassVar[bool] = True

    kind: Literal["lease"] = "lease"
    release: ReleaseName
    token: Ordinal
    holder: Holder


class LeaseEnded(Entry):
    """The holder of `token` stopped by itself."""

    kind: Literal["lease-ended"] = "lease-ended"
    release: ReleaseName
    token: Ordinal


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
    switch: Ordinal | None


class MarkOrdered(Entry):
    """Asks the driver of `release` to flag the first boundary whose predecessor is at or past `past`.

    With `switch` it announces that switch of `alias`: followers wait at the flagged boundary until the registry says
    `promoted` or `switch-aborted`; nothing else lets them pass.
    """

    kind: Literal["mark"] = "mark"
    id: OperationId
    release: ReleaseName
    past: SourcePosition
    switch: Ordinal | None
    alias: AppName | None
    deadline_ms: int


class DeltaSegment(Frozen):
    """A range of a delta topic's only partition."""

    topic: TopicName
    start: int = Field(ge=0)
    end: int = Field(ge=0)


class Switch(Frozen):
    """One link of an alias's chain: from `old` up to `old_end`, the delta, then `new` from `new_start` on.

    Numbers start at 1; number 1 has no old release. `delta`: in the order of delivery; a key delivered by an
    earlier segment is left out of the later ones. `cut`: the input position that both had.
    """

    number: Ordinal
    old: ReleaseName | None
    old_generation: Ordinal | None
    old_end: ResultPosition | None
    new: ReleaseName
    new_generation: Ordinal
    new_start: ResultPosition
    delta: tuple[DeltaSegment, ...] = ()
    cut: SourcePosition | None = None
    allowed: Literal["gap", "duplicates"] | None = None

    def only(self, result: str) -> Switch:
        """This switch for those who follow one result of the app. The delta still has the records of all tables."""
        old_end = self.old_end.only({result}) if self.old_end is not None else None
        return self.model_copy(update={"old_end": old_end, "new_start": self.new_start.only({result})})


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


class _Counts(TypedDict, total=False):
    """What a diff found in one result, as far as operations read it."""

    only_live: Required[Count]
    only_new: Required[Count]
    changed: Required[Count]
    identical: Required[Count]
    columns: dict[str, Count]
    samples: Sequence[dict[str, Any]]
    only_live_columns: Sequence[str]
    only_new_columns: Sequence[str]
    live_late_dropped: Count
    new_late_dropped: Count
    live_watermark_ms: Annotated[int, Field(strict=True)] | None
    new_watermark_ms: Annotated[int, Field(strict=True)] | None


class _Summary(_Counts, total=False):
    results: dict[str, _Counts]


_SUMMARY: TypeAdapter[_Summary] = TypeAdapter(_Summary)


def _with_counts(summary: dict[str, Any]) -> dict[str, Any]:
    _SUMMARY.validate_python(summary)
    return summary


class EvidenceRecorded(Entry):
    """What a diff found at an evidence cut. `forward`, `backward`: the delta from live to new and back.

    `apart`: one release was down and the other stood elsewhere. Then the delta is still exact, but the counts say
    little.
    """

    kind: Literal["evidence"] = "evidence"
    id: OperationId
    live: ReleaseName
    live_generation: Ordinal
    new: ReleaseName
    new_generation: Ordinal
    cut: SourcePosition
    live_result: ResultPosition
    new_result: ResultPosition
    summary: Annotated[dict[str, Any], AfterValidator(_with_counts)]
    forward: DeltaSegment | None = None
    backward: DeltaSegment | None = None
    apart: bool = False


class VerdictRecorded(Entry):
    """What the gate found, for a release, a generation and the checked range of the result. `via`: None for a command."""

    kind: Literal["verdict"] = "verdict"
    release: ReleaseName
    generation: Ordinal
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
    via: Via | None = None


class ReadyRecorded(Entry):
    """`wait` found this generation of the release hydrated. `via`: None for a command."""

    kind: Literal["ready"] = "ready"
    release: ReleaseName
    generation: Ordinal
    facts: dict[str, Any] = Field(default_factory=dict)
    via: Via | None = None

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
    generation: Ordinal
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
    """The unread entries at these offsets no longer count: nothing waits for them, and nothing reports them."""

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
