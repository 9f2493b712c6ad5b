"""The state that the registry's entries fold to. Pure: the log itself is `pipelines.kafka.registry`."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.errors import SwitchyardError
from pipelines.model.entries import (
    AlignOrdered,
    Carried,
    Closed,
    Entry,
    EvidenceRecorded,
    FollowerRegistered,
    FollowerRemoved,
    GenerationStarted,
    HistoryAccepted,
    Holder,
    LeaseEnded,
    LeaseTaken,
    MarkOrdered,
    Opened,
    Promoted,
    Proposed,
    ReadyRecorded,
    ReleaseSpec,
    ReleaseState,
    Repaired,
    Staged,
    StateSet,
    Switch,
    SwitchAborted,
    TopicsKnown,
    VerdictRecorded,
    Wanted,
    WantedSet,
)
from pipelines.model.missing import Gap
from pipelines.model.names import (
    MAX_ORDINAL,
    AppName,
    GroupName,
    OperationId,
    ReleaseName,
    TopicName,
    app_of,
    dead_letter_topic,
    delta_topic,
    is_delta_topic,
    result_topic,
)
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Progress
from pipelines.model.unread import Unread


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
    # when this generation's dead-letter topic was last found to be another one; 0: never
    letters_lost_ms: int = 0

    @property
    def name(self) -> str:
        return self.spec.release

    @property
    def next_token(self) -> int:
        """The token of its next lease. Raises SwitchyardError if there can be none."""
        return self._next("lease", self.token)

    @property
    def next_generation(self) -> int:
        """The number of its next generation. Raises SwitchyardError if there can be none."""
        return self._next("generation", max(self.generations, default=0))

    def _next(self, what: str, last: int) -> int:
        if last >= MAX_ORDINAL:
            raise SwitchyardError(
                f"{self.name} can have no further {what}: the registry gives the last one the number {last:,}",
                fix=f"find out who wrote that to the registry; `switchyard stage {self.spec.app} --execute` makes a new release",
            )
        return last + 1

    @property
    def generation(self) -> int:
        """Number of the current generation; 0 before the first."""
        return self.under.generation if self.under else 0

    @property
    def start(self) -> SourcePosition | None:
        """The start of the input that the current state comes from; for a kept state, where that state started."""
        first = self._first_of_state
        return first.start if first is not None else None

    @property
    def started_ms(self) -> int:
        """When the current state started, at `start`; milliseconds since the epoch, 0: not yet."""
        first = self._first_of_state
        return first.at_ms if first is not None else 0

    @property
    def _first_of_state(self) -> GenerationStarted | None:
        """The generation in which the current state started. A seed comes from an earlier generation, so this ends."""
        number, started = self.generation, self.generations.get(self.generation)
        while started is not None and started.seed is not None and started.seed.boundary.batch_id >= 0:
            if started.ended is None or started.ended.generation >= number:
                break
            number, started = started.ended.generation, self.generations.get(started.ended.generation)
        return started

    @property
    def result_topics(self) -> dict[str, str]:
        """Result name -> the topic that the current generation writes."""
        return self.topics_of(self.generation)

    @property
    def result_partitions(self) -> dict[str, int]:
        """Topic that the current generation writes -> number of its partitions."""
        return {topic: self.spec.outputs[name].partitions for name, topic in self.result_topics.items()}

    @property
    def result_start(self) -> ResultPosition:
        """The first offsets of the current generation's results."""
        return self.first_of(self.generation)

    @property
    def bounded(self) -> bool:
        """Whether the current generation is a replay that stops."""
        return self.under is not None and self.under.end is not None

    @property
    def all_results(self) -> list[str]:
        """The result topics of all its generations, sorted."""
        return sorted({topic for generation in self.generations for topic in self.topics_of(generation).values()})

    def topics_of(self, generation: int) -> dict[str, str]:
        """Result name -> the topic that a generation writes, or wrote."""
        known = self.generations.get(generation)
        number = (known.result if known else None) or generation
        return {name: result_topic(self.name, number, name) for name in self.spec.outputs}

    def first_of(self, generation: int) -> ResultPosition:
        """The first offsets of a generation's results."""
        outputs = self.spec.outputs
        return ResultPosition(
            topics={t: dict.fromkeys(range(outputs[n].partitions), 0) for n, t in self.topics_of(generation).items()}
        )

    def end_of(self, topic: str) -> ResultPosition | None:
        """Where a result that is no longer written ended; None for the current one, and for another release's topic."""
        if topic in self.result_topics.values():
            return None
        last = self.last_of(topic)
        return self.ended[last].result if last is not None else None

    def last_of(self, topic: str) -> int | None:
        """The generation that ended last of those that wrote `topic`. After an undo it may have a lower number."""
        wrote = [g for g in self.ended if topic in self.topics_of(g).values()]
        # a result only grows
        return max(wrote, key=lambda g: sum(self.ended[g].result.topics.get(topic, {}).values()), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation, open or closed. `carrier`: the process that carries it out, since `carried_ms`."""

    opened: Opened
    carrier: Holder | None = None
    carried_ms: int = 0
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

    @property
    def has_open(self) -> bool:
        """Whether an operation is open."""
        return any(operation.closed is None for operation in self.operations.values())

    def blocking(self, release: str) -> Operation | None:
        """The open operation that blocks `release`, if any."""
        return next((o for o in self.operations.values() if o.blocks(release)), None)

    def open_align(self, release: str) -> AlignOrdered | None:
        """The open order to align for `release`."""
        return next((o.align for o in self.operations.values()
                     if o.align and o.align.release == release and not o.resolved), None)  # fmt: skip

    def open_mark(self, release: str) -> MarkOrdered | None:
        """The open order to flag a boundary for `release`."""
        return next((o.mark for o in self.operations.values()
                     if o.mark and o.mark.release == release and not o.resolved), None)  # fmt: skip


class ImpossibleEntry(ValueError):
    """An entry says what no operation writes."""


def fold(state: RegistryState, entries: Iterable[Entry | Unread], *, strict: bool = False) -> RegistryState:
    """The state after `entries`, in order. An entry about something unknown changes nothing.

    Each table is copied once, when an entry first changes it. So the cost is one copy of the state plus the entries.
    `strict`: raises ImpossibleEntry for a switch that doesn't follow the one before, or that leads to anything but
    results of the new release; for evidence with a delta in another topic than its own, or about anything but results
    of its releases; and for either if it names a release of another app, or one that the state doesn't have.
    """
    draft = _Draft(state)
    for entry in entries:
        if strict and isinstance(entry, Promoted):
            _refuse_impossible_switch(entry, draft)
        if strict and isinstance(entry, EvidenceRecorded):
            _refuse_impossible_evidence(entry, draft)
        _apply(draft, entry)
    return draft.state()


def _refuse_impossible_switch(entry: Promoted, draft: _Draft) -> None:
    switch, newest, releases = entry.switch, draft.newest_switch(entry.alias), draft.table("releases")
    for name in (switch.old, switch.new):
        if name is not None:
            _refuse_unknown(name, releases)
        if name is not None and app_of(name) != entry.alias:
            raise ImpossibleEntry(f"it moves consumers of {entry.alias} to or from {name}, a release of another app")
    number, old = (newest.number, (newest.new, newest.new_generation)) if newest else (0, (None, None))
    if (switch.number, switch.old, switch.old_generation) != (number + 1, *old):
        raise ImpossibleEntry(f"it is switch {switch.number} from {switch.old}, but switch {number} led to {old[0]}")
    # followers look for the topics that it leads to
    if not switch.new_start.topics:
        raise ImpossibleEntry(f"it leads to no result of {switch.new}")
    _refuse_elsewhere(releases[switch.new], switch.new_generation, switch.new_start)
    if switch.old is not None and switch.old_generation is not None and switch.old_end is not None:
        _refuse_elsewhere(releases[switch.old], switch.old_generation, switch.old_end)
    for segment in switch.delta:
        if not is_delta_topic(segment.topic, entry.alias):
            raise ImpossibleEntry(f"its delta is in {segment.topic}, which is no delta topic of {entry.alias}")


def _refuse_impossible_evidence(entry: EvidenceRecorded, draft: _Draft) -> None:
    # a promotion writes into the topic of the delta, and reads the results
    app, releases = app_of(entry.new), draft.table("releases")
    if app_of(entry.live) != app:
        raise ImpossibleEntry(f"it compares {entry.live} with {entry.new}, a release of another app")
    for name, generation, result in (
        (entry.live, entry.live_generation, entry.live_result),
        (entry.new, entry.new_generation, entry.new_result),
    ):
        _refuse_unknown(name, releases)
        _refuse_elsewhere(releases[name], generation, result)
    for segment in (entry.forward, entry.backward):
        if segment is not None and segment.topic != delta_topic(app, entry.id):
            raise ImpossibleEntry(f"its delta is in {segment.topic}, which is not the delta topic of {entry.id}")


def _refuse_unknown(name: str, releases: Mapping[str, Release]) -> None:
    if name not in releases:
        raise ImpossibleEntry(
            f"it names release {name}, but this version can't read the entry that staged it, or there is none"
        )


def _refuse_elsewhere(release: Release, generation: int, position: ResultPosition) -> None:
    results = {topic: release.spec.outputs[name].partitions for name, topic in release.topics_of(generation).items()}
    for topic, offsets in position.topics.items():
        if topic not in results:
            raise ImpossibleEntry(f"{topic} is no result of {release.name} in generation {generation}")
        if any(not 0 <= partition < results[topic] or offset < 0 for partition, offset in offsets.items()):
            raise ImpossibleEntry(f"it names a partition or offset that {topic} can't have")


class _Draft:
    """A state that entries change in place; the state that it started from doesn't change."""

    def __init__(self, state: RegistryState) -> None:
        self._before = state
        self._tables: dict[str, Any] = {}
        # releases whose tables of generations this draft has already copied
        self._owned: set[str] = set()
        self._closed: int | None = None
        self._unread: list[Unread] | None = None
        self._unread_before = state.unread_before

    def table(self, name: str) -> dict[str, Any]:
        """A table of the state, copied for this draft."""
        if name not in self._tables:
            self._tables[name] = dict(getattr(self._before, name))
        found: dict[str, Any] = self._tables[name]
        return found

    def state(self) -> RegistryState:
        tables: dict[str, Any] = dict(self._tables)
        if self._unread is not None:
            tables |= {"unread": tuple(self._unread), "unread_before": self._unread_before}
        if not tables:
            return self._before
        if "chains" in tables:
            tables["chains"] = {alias: tuple(chain) for alias, chain in tables["chains"].items()}
        if "evidence" in tables:
            kept = sorted((e for pair in tables["evidence"].values() for e in pair), key=lambda e: e[0])
            tables["evidence"] = tuple(e for _, e in kept)
        return replace(self._before, **tables)

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
        self.release(entry.release, under=entry, ready=None, verdict=None, letters_lost_ms=0, **tables)

    def know(self, entry: TopicsKnown) -> None:
        known = self.table("releases").get(entry.release)
        if known is None:
            return
        inputs = {**entry.inputs, **known.input_ids.get(entry.generation, {})}
        letters = dead_letter_topic(entry.release)
        others = letters in known.own_ids and letters in entry.own and entry.own[letters] != known.own_ids[letters]
        self.release(
            entry.release,
            input_ids={**known.input_ids, entry.generation: inputs},
            own_ids={**known.own_ids, **entry.own},
            letters_lost_ms=entry.at_ms if others else known.letters_lost_ms,
        )

    def newest_switch(self, alias: str) -> Switch | None:
        """The newest link of the alias's chain; None: it has none."""
        chain = self._tables.get("chains", self._before.chains).get(alias, ())
        return chain[-1] if chain else None

    def promote(self, entry: Promoted) -> None:
        if "chains" not in self._tables:
            self._tables["chains"] = {alias: list(chain) for alias, chain in self._before.chains.items()}
        self._tables["chains"].setdefault(entry.alias, []).append(entry.switch)
        self.table("promoted")[entry.alias] = entry
        if entry.op:
            self.operation(entry.op, promoted=entry)

    def record(self, entry: EvidenceRecorded) -> None:
        """Adds the evidence of a diff, and drops the oldest for the same releases."""
        if "evidence" not in self._tables:
            self._tables["evidence"] = {}
            self._numbered = 0
            for known in self._before.evidence:
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
            self._unread = list(self._before.unread)
            self._optional = sum(not u.must for u in self._unread)
        self._unread.append(entry)
        self._optional += not entry.must
        if self._optional >= 2 * UNREAD_KEPT:
            over = {u.offset for u in [u for u in self._unread if not u.must][:-UNREAD_KEPT]}
            self._unread = [u for u in self._unread if u.offset not in over]
            self._unread_before += len(over)
            self._optional = UNREAD_KEPT

    def repair(self, entry: Repaired) -> None:
        known = self._before.unread if self._unread is None else self._unread
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
            draft.operation(op, carrier=entry.holder, carried_ms=entry.at_ms)
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
