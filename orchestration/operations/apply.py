"""Applies stages. Each does only what is left of it, so that applying a plan again resumes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from orchestration.operations import evidence as ev
from orchestration.operations.agreement import Agreement
from orchestration.operations.agreement import changed_ratio as share_of_records
from orchestration.operations.backlog import MEANWHILE_RECORDS
from orchestration.operations.context import Context, find_release, refuse_blocked
from orchestration.operations.delta import Delta, write_delta
from orchestration.operations.generations import Generations, begun, last_of
from orchestration.operations.in_use import refuse_live, refuse_needed
from orchestration.operations.journal import aborting
from orchestration.operations.kind import Kind
from orchestration.operations.plan import Plan
from orchestration.operations.stages import (
    AbortSwitch,
    AcceptHistory,
    Align,
    AppendGeneration,
    AppendSwitch,
    AwaitFollowers,
    AwaitStopped,
    BeginGeneration,
    ChooseStart,
    Compare,
    CompareGenerations,
    CreateTopic,
    DeleteCheckpoint,
    DeleteFiles,
    DeleteGroup,
    DeleteTopic,
    Fence,
    FinishBatch,
    FlagBoundary,
    GiveBack,
    InheritState,
    Launch,
    Meet,
    PrepareDelta,
    Reach,
    RecordRelease,
    Repair,
    Seize,
    SetState,
    Stage,
    StoreCode,
    Tombstone,
    VerifyStream,
    Want,
    WriteClearing,
    WriteDelta,
    describe,
)
from orchestration.operations.vigil import Vigil
from pipelines.engine.code import FrozenCode, code_path, store
from pipelines.engine.lease import this_process
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.heartbeats import HeartbeatTail
from pipelines.kafka.progress import ProgressTail, progress_history
from pipelines.kafka.registry import Decide, now_ms
from pipelines.model.missing import without
from pipelines.model.names import progress_topic
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Mark, Progress
from pipelines.model.registry import (
    AlignOrdered,
    DeltaSegment,
    Entry,
    EvidenceRecorded,
    HistoryAccepted,
    LeaseEnded,
    LeaseTaken,
    MarkOrdered,
    Operation,
    RegistryState,
    Release,
    ReleaseState,
    Repaired,
    StateSet,
    Switch,
    Wanted,
    WantedSet,
)
from pipelines.model.switch import choose_start, of_generation, promotion
from pipelines.model.unread import refuse_unread
from pipelines.paths import below, remove
from pipelines.settings import Settings

_POLL_S = 0.05
_SHORT_BATCH_MS = 5_000


class Applier:
    """Applies the stages of one plan, in order. Between them it keeps what the drivers answered."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self._context = context
        self._plan = plan
        self._tails: dict[str, ProgressTail] = {}
        self._delta: Delta | None = None
        self._agreement: Agreement | None = None
        self._segments: tuple[DeltaSegment, ...] = ()
        # how far the release that aligns stands at most
        self._past: SourcePosition | None = None
        # where the two sides of a switch stand, if they did not meet at a boundary
        self._ends: dict[str, Mark] = {}
        self._generations = Generations(context, plan, self._step)
        # whether the plan's operation was seen in the registry
        self._opened = False

    def orders(self) -> list[Entry]:
        """What the drivers may be asked in the very step that opens the operation: it saves a step where seconds count."""
        if any(isinstance(stage, PrepareDelta) for stage in self._plan.stages):
            # that takes long, and goes before
            return []
        return [self._order(stage) for stage in self._plan.stages if isinstance(stage, Align)]

    def _order(self, stage: Align) -> AlignOrdered:
        return AlignOrdered(id=self._plan.id, release=stage.release, other=stage.other, switch=stage.switch)

    def run(self) -> None:
        """Applies every stage, saying each."""
        try:
            for stage in self._plan.stages:
                # of an evidence of its own there is nothing to begin with
                if isinstance(stage, WriteDelta) and stage.evidence != self._plan.id:
                    self._delta = self._new_delta(stage)
                if isinstance(stage, VerifyStream):
                    self._agreement = self._new_agreement(stage)
            since = self._delta or self._agreement
            if since is not None and self.orders():
                since.begin()
            for stage in self._left():
                self._refuse_closed(self._context.registry.known)
                self._context.say(describe(stage))
                self.apply(stage)
        finally:
            self._generations.close()
            for each in (self._delta, self._agreement):
                if each is not None:
                    each.close()
            for tail in self._tails.values():
                tail.close()

    def _left(self) -> tuple[Stage, ...]:
        """The stages to apply: behind the beginning of a generation, if that is done, what came before it is over."""
        stages = self._plan.stages
        if begun(self._context.registry.known, self._plan.id):
            return stages[1 + next(n for n, s in enumerate(stages) if isinstance(s, BeginGeneration)) :]
        return stages

    def apply(self, stage: Stage) -> None:
        """Applies one stage. Raises Refused where the world is not as planned, SwitchyardError where it fails."""
        _context, settings = self._context, self._context.settings
        match stage:
            case StoreCode():
                store(settings, FrozenCode(digest=stage.digest, data=stage.data))
            case CreateTopic():
                self._context.registry.ensure()
                self._context.cluster.ensure_topic(stage.name, stage.partitions, stage.config)
            case RecordRelease():
                self._step(lambda state: _new_release(state, stage))
            case AcceptHistory():
                self._step(lambda state: _accepted(state, stage))
            case Want():
                self._refuse_in_use(stage.release)
                self._step(lambda state: self._want(state, stage))
            case Launch():
                self._launch(stage)
            case AwaitStopped():
                self._await_stopped(stage)
            case SetState():
                self._set_state(stage)
            case Align():
                self._align(stage)
            case FlagBoundary():
                self._flag(stage)
            case Meet():
                self._await_progress(stage.release, stage.timeout_s, f"{stage.release} has not met {stage.other}",
                                     lambda p: p.aligned is not None and p.aligned.op == self._plan.id)  # fmt: skip
            case Fence():
                self._fence(stage.release)
            case ChooseStart():
                self._choose_start(stage)
            case Compare():
                self._compare(stage)
            case PrepareDelta():
                self._prepare_delta(stage)
            case WriteDelta():
                self._write_delta(stage)
            case VerifyStream():
                self._verify_stream(stage)
            case AppendSwitch():
                self._step(lambda state: self._switch(state, stage))
            case AbortSwitch():
                self._step(lambda state: aborting(state, stage.operation, self._plan.reason))
            case DeleteTopic():
                self._context.cluster.delete_topics([stage.name])
            case DeleteGroup():
                self._context.cluster.delete_group(stage.group)
            case DeleteFiles():
                _delete_files(settings, stage)
            case Repair():
                self._step(lambda state: [Repaired(offsets=stage.offsets)] if _still_unread(state, stage) else [])
            case (
                BeginGeneration() | FinishBatch() | Seize() | GiveBack() | InheritState() | Tombstone() | Reach()
                | CompareGenerations() | WriteClearing() | AppendGeneration() | AwaitFollowers() | DeleteCheckpoint()
            ):  # fmt: skip
                self._generations.apply(stage)
            case _:
                assert_never(stage)

    def _step(self, decide: Decide) -> RegistryState:
        def mine(state: RegistryState) -> Sequence[Entry]:
            self._refuse_closed(state)
            for release in self._plan.releases:
                refuse_unread(state.not_understood(release), release)
            return decide(state)

        return self._context.registry.step(mine, op=self._plan.id, reason=self._plan.reason)

    def _refuse_closed(self, state: RegistryState) -> None:
        """Raises Refused if this plan's operation was ended meanwhile: nothing more of it may happen."""
        known = state.known_operations.get(self._plan.id)
        self._opened = self._opened or known is not None
        if known is None and self._opened:
            # closed so long ago that the state has forgotten it
            how = "ended meanwhile"
        elif known is not None and known.closed is not None:
            how = f"{known.closed.outcome} meanwhile: {known.closed.detail or 'by someone else'}"
        else:
            return
        raise Refused(f"{self._plan.id} was {how}", fix="see `switchyard log`; make a new plan if it is still wanted")

    # -- drivers

    def _want(self, state: RegistryState, stage: Want) -> Sequence[Entry]:
        release = find_release(state, stage.release)
        if self._retires():
            refuse_live(state, release)
        entries = wanting(state, release, stage.wanted)
        # a driver that died during a switch is started again: nothing that is wanted changes, and the switch needs it
        if entries:
            refuse_blocked(state, stage.release, but=self._plan.id)
        return entries

    def _retires(self) -> bool:
        return self._plan.operation is Kind.RETIRE

    def _refuse_in_use(self, name: str) -> None:
        """Since a retirement was planned, and before it blocked the release, someone may have come to need it."""
        state = self._context.registry.state()
        # one that is retired already has gone: what is left of it helps nobody
        if self._retires() and (release := find_release(state, name)).state != "retired":
            refuse_needed(self._context, state, release)

    def _set_state(self, stage: SetState) -> None:
        def decide(state: RegistryState) -> Sequence[Entry]:
            release = find_release(state, stage.release)
            if release.state == stage.state:
                return []
            if self._retires():
                refuse_live(state, release)
            return [StateSet(release=stage.release, state=stage.state)]

        self._refuse_in_use(stage.release)
        self._step(decide)

    def _holder(self, release: str) -> str | None:
        return self._context.holder(self._context.registry.state().releases[release])

    def _launch(self, stage: Launch) -> None:
        holder = None if stage.force else self._holder(stage.release)
        if holder is not None:
            self._context.say(f"{stage.release} runs already: {holder}")
            return
        before = self._context.registry.state().releases[stage.release].token
        where = self._context.launcher.launch(stage.release, force=stage.force)
        self._context.say(f"driver of {stage.release}: {where}")

        def heard() -> bool:
            beat = self._context.beats(10).get(stage.release)
            if beat is not None and beat.token > before and beat.state == "failed":
                raise SwitchyardError(f"the driver of {stage.release} failed: {beat.error}", fix=f"see {where}")
            return beat is not None and beat.token > before and beat.state != "starting"

        self._context.until(
            f"the driver of {stage.release} isn't running",
            heard,
            timeout_s=self._context.settings.boot_timeout_s,
            fix=f"see {where}",
            poll_s=0.25,
        )

    def _await_stopped(self, stage: AwaitStopped) -> None:
        self._context.until(
            f"{stage.release} has not stopped",
            lambda: self._holder(stage.release) is None,
            timeout_s=stage.timeout_s,
            fix=f"it finishes its batch first; see `switchyard status {stage.release}`",
            poll_s=0.1,
        )

    # -- meeting

    def _tail(self, release: str) -> ProgressTail:
        if release not in self._tails:
            self._tails[release] = ProgressTail(self._context.settings, release)
        return self._tails[release]

    def _await_progress(self, release: str, timeout_s: float, what: str, done: object) -> Progress:
        """The first newest progress record of `release` that satisfies `done`. Raises once the operation was ended, or
        `release` is run by nobody and won't be.
        """
        tail = self._tail(release)
        deadline = self._context.monotonic() + timeout_s
        vigil = Vigil(self._context, release)
        while True:
            progress = tail.poll(_POLL_S)
            if progress is not None and done(progress):  # type: ignore[operator]
                return progress
            self._context.registry.poll(0)
            self._operation(self._context.registry.known)
            vigil.look()
            if self._context.monotonic() > deadline:
                raise SwitchyardError(f"{what}: not within {timeout_s:g} s",
                                      fix=f"see `switchyard status` and the log of {release}")  # fmt: skip

    def _operation(self, state: RegistryState) -> Operation:
        """This plan's operation. Raises Refused if it was ended meanwhile."""
        operation = state.known_operations.get(self._plan.id)
        if operation is None or operation.closed is not None or operation.aborted:
            how = operation.closed.outcome if operation and operation.closed else "aborted"
            raise Refused(
                f"{self._plan.id} was {how} meanwhile: its deadline passed, or someone ended it",
                fix=f"`switchyard log {self._plan.id}` says who; consumers stay where they are; begin anew",
            )
        return operation

    def _align(self, stage: Align) -> None:
        if self._operation(self._context.registry.known).align is None:
            self._step(lambda state: [] if self._operation(state).align is not None else [self._order(stage)])
        beats = HeartbeatTail(self._context.settings)
        try:
            # whichever comes first: its word, or the boundary at which it stands
            self._await_progress(stage.release, stage.timeout_s, f"{stage.release} has not paused",
                                 lambda p: self._paused(p) or self._promised(stage, beats))  # fmt: skip
        finally:
            beats.close()

    def _paused(self, progress: Progress) -> bool:
        if progress.paused is None or progress.paused.op != self._plan.id:
            return False
        self._past = progress.paused.boundary.position
        return True

    def _promised(self, stage: Align, beats: HeartbeatTail) -> bool:
        token = self._context.registry.known.releases[stage.release].token
        for beat in beats.poll(0):
            # consumers would wait at the barrier for the batch under way, too: not for one that is long, or the first
            short = stage.switch is None or 0 < beat.batch_ms <= _SHORT_BATCH_MS
            word = beat.pausing if (beat.release, beat.token) == (stage.release, token) else None
            if word is not None and word.op == self._plan.id and short:
                self._past = word.by
                return True
        return False

    def _flag(self, stage: FlagBoundary) -> None:
        def decide(state: RegistryState) -> Sequence[Entry]:
            if self._operation(state).mark is not None:
                return []
            if self._past is None:
                raise SwitchyardError(f"{self._plan.id} has not paused {stage.release}", fix="make a new plan")
            return [
                MarkOrdered(
                    id=self._plan.id,
                    release=stage.other,
                    past=self._past,
                    switch=stage.switch,
                    alias=stage.alias,
                    deadline_ms=now_ms() + int(stage.deadline_s * 1000),
                )
            ]

        self._step(decide)
        name = "evidence" if stage.switch is None else "barrier"
        self._await_progress(stage.other, stage.deadline_s, f"{stage.other} has not flagged a boundary",
                             lambda p: (m := getattr(p, name)) is not None and m.op == self._plan.id)  # fmt: skip

    def _mark(self, release: str, name: str) -> Mark:
        progress = self._tail(release).newest
        mark: Mark | None = getattr(progress, name) if progress is not None else None
        if mark is None or mark.op != self._plan.id:
            raise SwitchyardError(f"{release} has no {name} mark for {self._plan.id}", fix="make a new plan")
        return mark

    def _end(self, release: str, name: str) -> Mark:
        return self._ends[release] if release in self._ends else self._mark(release, name)

    def _fence(self, name: str) -> None:
        """A newer token ends a driver that still reads the registry; `init_transactions` ends one that doesn't."""
        settings = self._context.settings
        holder = this_process(settings)

        def decide(state: RegistryState) -> Sequence[Entry]:
            token = state.releases[name].token + 1
            return [
                WantedSet(release=name, wanted="stopped"),
                LeaseTaken(release=name, token=token, holder=holder),
                LeaseEnded(release=name, token=token),
            ]

        last = last_of(self._context, self._step(decide).releases[name])
        if last is None:
            raise SwitchyardError(f"{name} has committed nothing", fix="promote another release instead")
        self._ends[name] = Mark(op=self._plan.id, boundary=last.boundary, result=last.result)

    def _choose_start(self, stage: ChooseStart) -> None:
        end = self._ends[stage.other].boundary.position
        generation = self._context.registry.state().releases[stage.release].generation
        history = of_generation(progress_history(self._context.settings, stage.release), generation)
        found = choose_start(history, end, stage.allowed)
        self._ends[stage.release] = Mark(op=self._plan.id, boundary=found.boundary, result=found.result)

    # -- evidence and switch

    def _compare(self, stage: Compare) -> None:
        context, settings = self._context, self._context.settings
        state = context.registry.state()
        if any(e.id == self._plan.id for e in state.evidence):
            return
        live, new = state.releases[stage.live], state.releases[stage.new]
        here, there = self._end(stage.live, "evidence"), self._end(stage.new, "aligned")
        spark = context.session(here.result.records + there.result.records)
        path = ev.evidence_path(settings, self._plan.id)
        ev.write_fold(
            ev.folded(spark, settings, live.spec, here.result),
            ev.folded(spark, settings, new.spec, there.result),
            path,
        )
        found = ev.compare(spark, path, live_ddl=live.spec.schema_ddl, new_ddl=new.spec.schema_ddl,
                           tolerance=stage.tolerance, samples=stage.samples)  # fmt: skip
        totals = {name: self._tail(name).newest for name in (stage.live, stage.new)}
        summary = {
            **found.as_json(),
            "live_late_dropped": _late(totals[stage.live]),
            "new_late_dropped": _late(totals[stage.new]),
            "live_watermark_ms": here.boundary.watermark_ms,
            "new_watermark_ms": there.boundary.watermark_ms,
        }
        forward, backward = write_delta(settings, new.spec.app, self._plan.id, path) if new.spec.table else (None, None)
        entry = EvidenceRecorded(
            id=self._plan.id,
            live=stage.live,
            live_generation=live.generation,
            new=stage.new,
            new_generation=new.generation,
            cut=here.boundary.position,
            live_result=here.result,
            new_result=there.result,
            summary=summary,
            forward=forward,
            backward=backward,
            apart=not here.boundary.position.same(there.boundary.position),
        )
        self._step(lambda _: [entry])

    def _prepare_delta(self, stage: PrepareDelta) -> None:
        since = self._delta or self._agreement
        if since is None:
            since = self._delta = self._new_delta(stage)
        if self._operation(self._context.registry.state()).align is not None:
            # resumed: the drivers meet already, and consumers may wait
            since.begin()
        else:
            since.advance(self._in_time, MEANWHILE_RECORDS)

    def _in_time(self) -> None:
        """Raises once the operation was ended, or has outlived its deadline: anyone may end it then."""
        self._context.registry.poll(0)
        if self._operation(self._context.registry.known).opened.deadline_ms < now_ms():
            raise SwitchyardError(
                f"what changed since the evidence could not be read before the deadline of {self._plan.id}",
                fix="`switchyard diff` first: then there is less",
            )

    def _new_delta(self, stage: PrepareDelta | WriteDelta) -> Delta:
        evidence = next(e for e in self._context.registry.known.evidence if e.id == stage.evidence)
        return Delta(self._context.settings, evidence, to=stage.new)

    def _new_agreement(self, stage: VerifyStream) -> Agreement:
        evidence = next(e for e in self._context.registry.known.evidence if e.id == stage.evidence)
        return Agreement(self._context.settings, evidence, to=stage.new)

    def _verify_stream(self, stage: VerifyStream) -> None:
        agreement = self._agreement = self._agreement or self._new_agreement(stage)
        since = agreement.verify(self._end(stage.old, "barrier").result, self._end(stage.new, "aligned").result)
        evidence = next(e for e in self._context.registry.known.evidence if e.id == stage.evidence)
        _refuse_too_many(share_of_records(evidence, since), stage.max_changed, "records", since.records)
        self._context.say(f"{since.records:,} records came since the evidence cut; {since.ratio:.1%} of them differ")

    def _write_delta(self, stage: WriteDelta) -> None:
        self._delta = self._delta or self._new_delta(stage)
        touched = self._delta.touched(self._end(stage.old, "barrier").result, self._end(stage.new, "aligned").result)
        # of the whole table, as when it was planned: a few keys that were touched are no measure of it
        if stage.max_changed is not None:
            _refuse_too_many(self._delta.changed_ratio(touched), stage.max_changed, "keys", len(touched))
        self._context.say(
            f"{len(touched):,} keys were touched since the evidence cut; {touched.ratio:.1%} of them differ"
        )
        self._segments = self._delta.write(touched)

    def _switch(self, state: RegistryState, stage: AppendSwitch) -> Sequence[Entry]:
        operation = self._operation(state)
        if operation.promoted is not None:
            return []
        new = state.releases[stage.new]
        if stage.old is None:
            start = ResultPosition(topics={new.result_topic: dict.fromkeys(range(new.spec.partitions), 0)})
            switch = Switch(number=stage.number, old=None, old_generation=None, old_end=None, new=stage.new,
                            new_generation=new.generation, new_start=start)  # fmt: skip
            return [*promotion(state, stage.alias, self._plan.id, switch), StateSet(release=stage.new, state="live")]
        barrier, aligned = self._end(stage.old, "barrier"), self._end(stage.new, "aligned")
        switch = Switch(
            number=stage.number,
            old=stage.old,
            # the generation whose result consumers read; what goes on writing it may be a later one
            old_generation=state.chains[stage.alias][-1].new_generation,
            old_end=barrier.result,
            new=stage.new,
            new_generation=new.generation,
            new_start=aligned.result,
            delta=self._segments,
            cut=barrier.boundary.position,
            allowed=stage.allowed,
        )
        return [
            *promotion(state, stage.alias, self._plan.id, switch),
            StateSet(release=stage.new, state="live"),
            *left_by_consumers(state.releases[stage.old]),
        ]


def _delete_files(settings: Settings, stage: DeleteFiles) -> None:
    # before anything goes: one path that leads elsewhere, and all of it is left as it is
    code = code_path(settings, stage.code_digest) if stage.code_digest is not None else None
    folders = [("checkpoints", stage.release), ("run", stage.release), *map(ev.evidence_home, stage.evidence)]
    for folder in folders:
        below(settings.state_dir, *folder)
    for folder in folders:
        remove(settings.state_dir, *folder)
    if code is not None:
        code.unlink(missing_ok=True)


def _refuse_too_many(ratio: float, limit: float | None, of: str, since: int) -> None:
    if limit is not None and ratio > limit:
        came = "were touched" if of == "keys" else "came"
        raise Refused(
            f"by now {ratio:.2%} of the {of} differ, as they are written, over --max-changed {limit:.2%}: {since:,} {came} since the evidence cut",
            fix="run `switchyard diff` again and look at it",
        )


def wanting(state: RegistryState, release: Release, wanted: Wanted) -> list[Entry]:
    """What has to be written for a release to be wanted so; nothing: it is already."""
    entries: list[Entry] = []
    if release.wanted != wanted:
        entries.append(WantedSet(release=release.name, wanted=wanted))
    if wanted == "running" and release.state in ("staged", "failed"):
        entries.append(StateSet(release=release.name, state=starting_state(state, release)))
    return entries


def starting_state(state: RegistryState, release: Release) -> ReleaseState:
    """The state that a release starts with: one that consumers have followed is what it was before it failed."""
    chain = state.chains.get(release.spec.app, ())
    if chain and chain[-1].new == release.name:
        return "live"
    return "standby" if any(release.name in (s.old, s.new) for s in chain) else "hydrating"


def left_by_consumers(release: Release) -> list[Entry]:
    """A release that consumers leave is the standby; one that failed says why until it is started again, as the standby."""
    return [] if release.state == "failed" else [StateSet(release=release.name, state="standby")]


def _late(progress: Progress | None) -> int:
    return progress.total.late_dropped if progress is not None else 0


def _still_unread(state: RegistryState, stage: Repair) -> bool:
    return not {u.offset for u in state.unread}.isdisjoint(stage.offsets)


def _new_release(state: RegistryState, stage: RecordRelease) -> Sequence[Entry]:
    if stage.release in state.releases:
        raise Refused(f"{stage.release} is staged already", fix="stage another version; a release never changes")
    return stage.entries


def _accepted(state: RegistryState, stage: AcceptHistory) -> Sequence[Entry]:
    left = without(stage.missing, state.releases[stage.release].accepted)
    return [HistoryAccepted(release=stage.release, missing=left)] if left else []


def owned_topics(state: RegistryState, name: str) -> list[str]:
    """The topics that release `name` owns by the registry's record: results of all its generations, progress, dead letters."""
    from pipelines.model.names import dead_letter_topic

    release = state.releases[name]
    results = sorted({release.topic_of(generation) for generation in release.generations})
    return [*results, progress_topic(name), dead_letter_topic(name)]
