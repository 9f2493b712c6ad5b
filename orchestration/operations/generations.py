"""Applies the stages by which a release goes from one generation to another: a reset, and its undo.

The registry's entry of the new generation is the one step that counts: what comes before it can be done again, what comes
behind does only what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from orchestration.operations.comparing.delta_topic import DeltaTopic, write_delta
from orchestration.operations.comparing.evidence import evidence_path
from orchestration.operations.comparing.fold import compare, folded, write_fold
from orchestration.operations.comparing.reading import read_changes
from orchestration.operations.context import Context
from orchestration.operations.in_use import followers_before
from orchestration.operations.journal import refuse_other_generation
from orchestration.operations.lifecycle import refuse_blocked
from orchestration.operations.plans.plan import Plan, join
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import (
    AppendGeneration,
    AwaitFollowers,
    BeginGeneration,
    CompareGenerations,
    DeleteCheckpoint,
    FinishBatch,
    GiveBack,
    InheritState,
    Reach,
    Seize,
    Tombstone,
    WriteClearing,
)
from pipelines.engine.checkpoint import Checkpoint, forget, inherit, newest_folder
from pipelines.engine.lease import this_process
from pipelines.engine.writer import Writer
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.client import consumer
from pipelines.kafka.offsets import end_of
from pipelines.kafka.progress import ProgressTail
from pipelines.kafka.registry import now_ms
from pipelines.kafka.topics import APPEND_ONLY
from pipelines.model.names import dead_letter_topic, delta_topic, progress_topic, result_topic
from pipelines.model.positions import ResultPosition, SourcePosition, Span
from pipelines.model.progress import MARKS, Boundary, Mark, Progress
from pipelines.model.registry import (
    DeltaSegment,
    Entry,
    EvidenceRecorded,
    GenerationStarted,
    LeaseEnded,
    LeaseTaken,
    RegistryState,
    Release,
    ReleaseSpec,
    StateSet,
    Switch,
    TopicsKnown,
)
from pipelines.model.reset import spans_of
from pipelines.model.switch import promotion

Decide = Callable[[RegistryState], Sequence[Entry]]


def begun(state: RegistryState, plan_id: str) -> bool:
    """Whether the operation has begun its generation: from there on it can only be finished, or undone."""
    return any(r.under is not None and r.under.op == plan_id for r in state.releases.values())


def seed_of(entry: BeginGeneration, old: Release) -> Progress:
    """The progress record that the generation of `entry` goes on from, of batch -1 where it begins from nothing.

    Its driver writes it, with the result's position as it is then.
    """
    # what operations asked of an earlier generation is over
    marks = dict.fromkeys(MARKS)
    if entry.again:
        return old.ended[entry.generation].model_copy(update=marks)
    ended = old.ended.get(old.generation)
    if not entry.keeps or ended is None:
        boundary = Boundary(batch_id=-1, position=entry.start)
        return Progress(release=entry.release, generation=entry.generation, token=0, boundary=boundary,
                        result=ResultPosition(topics={}), at_ms=0)  # fmt: skip
    boundary = ended.boundary.model_copy(update={"position": entry.start, "previous": None, "settled": False})
    return ended.model_copy(update={"generation": entry.generation, "boundary": boundary, **marks})


class Generations:
    """The effects of a reset's stages. `step`: writes to the registry for the plan's operation."""

    def __init__(self, context: Context, plan: Plan, step: Callable[[Decide], RegistryState]) -> None:
        self._context = context
        self._plan = plan
        self._step = step
        self._tokens: dict[str, int] = {}
        self._cleared: DeltaSegment | None = None

    def apply(self, stage: Stage) -> None:
        """Applies one stage. Raises as `Applier.apply` does."""
        match stage:
            case FinishBatch():
                self._finish(stage)
            case Seize():
                self._seize(stage.release)
            case GiveBack():
                self._give_back(stage.release)
            case InheritState():
                self._inherit(stage)
            case BeginGeneration():
                self._begin(stage)
            case Tombstone():
                self._tombstone(stage)
            case Reach():
                self._reach(stage)
            case CompareGenerations():
                self._compare(stage)
            case WriteClearing():
                self._clear(stage)
            case AppendGeneration():
                self._step(lambda state: self._switch(state, stage))
            case AwaitFollowers():
                self._await_followers(stage)
            case DeleteCheckpoint():
                forget(self._context.settings, stage.release, stage.generation)
            case _:
                raise TypeError(f"nothing is known of {stage.kind}")

    # -- while nobody runs it

    def _finish(self, stage: FinishBatch) -> None:
        context, name = self._context, stage.release
        last = progress_of(context, self._release(name))
        if last is None or not is_unfinished(context, self._release(name), last):
            return

        def finished() -> bool:
            release = self._release(name)
            return not is_unfinished(context, release, last) and context.holder(release) is None

        where = context.launcher.launch(name, settle=True)
        context.until(
            f"{name} has not finished batch {last.boundary.batch_id}",
            finished,
            timeout_s=stage.timeout_s,
            fix=f"see {where}; without its state it can be reset with --state clear",
            poll_s=0.1,
        )

    def _seize(self, name: str, *, again: bool = False) -> None:
        if begun(self._context.registry.state(), self._plan.id) and not again:
            raise Refused(
                f"{self._plan.id} is carried out by someone else, who has begun its generation",
                fix="see `switchyard operations`",
            )
        release = self._release(name)
        holder = self._context.holder(release)
        if holder is not None:
            raise Refused(f"{name} is run by {holder}", fix=f"`switchyard stop {name} --execute`, then try again")
        mine = this_process(self._context.settings)

        def decide(state: RegistryState) -> Sequence[Entry]:
            refuse_blocked(state, name, but=self._plan.id)
            if state.releases[name].token != release.token:
                raise Refused(f"{name} was started meanwhile", fix="see `switchyard status`; then try again")
            return [LeaseTaken(release=name, token=release.token + 1, holder=mine)]

        self._tokens[name] = self._step(decide).releases[name].token

    def _give_back(self, name: str) -> None:
        """Also what an operator who is gone has left of this very operation."""
        self._tokens.pop(name, None)

        def decide(state: RegistryState) -> Sequence[Entry]:
            lease = state.releases[name].lease
            mine = lease is not None and lease.op == self._plan.id and not state.releases[name].lease_ended
            return [LeaseEnded(release=name, token=lease.token)] if lease is not None and mine else []

        # whatever has become of the operation
        self._context.registry.step(decide, op=self._plan.id)

    def close(self) -> None:
        """Gives back what is still held."""
        for name in list(self._tokens):
            self._give_back(name)

    def _inherit(self, stage: InheritState) -> None:
        settings, release = self._context.settings, self._release(stage.release)
        last, source = progress_of(self._context, release), newest_folder(settings, stage.release, stage.old)
        if last is None or source is None:
            raise Refused(f"{stage.release} has no state to keep", fix="reset it with --state clear")
        if not last.boundary.position.same(stage.at):
            raise Refused(
                f"{stage.release} has read on since the plan was made", fix="make a new plan: it stands still now"
            )
        inherit(
            settings,
            stage.release,
            stage.generation,
            self._tokens[stage.release],
            source,
            lambda copy: Checkpoint(copy, release.spec.topics).stand_at(last.boundary.batch_id, stage.position),
        )

    def _begin(self, stage: BeginGeneration) -> None:
        name = stage.release
        # a new candidate's first generation, or one that failed, has no operation that holds its lease
        held = name in self._tokens
        before = self._release(name)
        ended = self._ended(before) if held else None
        old = before if ended is None else _with_end(before, ended)
        seen = processed(self._context, self._context.registry.state(), before.spec, old)
        known = self._topics(before, stage)
        if _differ(known.inputs, before.input_ids.get(before.generation, {})):
            # offsets of a topic that is gone mean nothing in another of its name
            seen = ()
        if not stage.again and not stage.keeps:
            # of an attempt that was given up before it began this generation
            forget(self._context.settings, name, stage.generation)

        def decide(state: RegistryState) -> Sequence[Entry]:
            release = state.releases[name]
            if release.under is not None and release.under.op == self._plan.id:
                return []
            # whoever is at work on the release means the generation that it has
            refuse_blocked(state, name, but=self._plan.id)
            if held and release.token != self._tokens[name]:
                raise Refused(f"{name} was started meanwhile", fix="make a new plan")
            refuse_other_generation(state, stage)
            if stage.at is not None and ended is not None and not ended.boundary.position.same(stage.at):
                raise Refused(f"{name} has read on since the plan was made", fix="make a new plan: it stands still now")
            if not stage.again and stage.generation <= max(release.generations, default=0):
                raise Refused(f"{name} has generation {stage.generation} already", fix="make a new plan")
            entry = GenerationStarted(
                release=name,
                generation=stage.generation,
                start=stage.start,
                result=stage.result,
                ended=ended,
                seed=seed_of(stage, old),
                meet=stage.meet,
                cleared=stage.cleared,
                until=stage.until,
                then=stage.then,
                processed=seen,
                max_records_per_batch=stage.max_records_per_batch,
            )
            states = [StateSet(release=name, state=stage.state)] if stage.state else []
            return [entry, *states, known]

        self._step(decide)

    def _ended(self, release: Release) -> Progress | None:
        """The last committed progress record; where the progress is lost, as much of it as the consumer group tells, whose offsets
        were committed with it.
        """
        last = last_of(self._context, release)
        topic = progress_topic(release.name)
        now = self._context.cluster.topic_ids([topic]).get(topic)
        lost = now != release.own_ids.get(topic, now)
        return (by_group(self._context, release) or last) if lost or last is None else last

    def _topics(self, release: Release, stage: BeginGeneration) -> TopicsKnown:
        """The ids of the topics that the generation reads and writes, as they are now; one that goes on again has its own."""
        name = stage.release
        own = [progress_topic(name), dead_letter_topic(name)]
        if not stage.again and stage.result is None:
            own.append(result_topic(name, stage.generation))
        inputs = set(release.spec.topics.values()) if not stage.again else set()
        now = self._context.cluster.topic_ids({*own, *inputs})
        return TopicsKnown(
            release=name,
            generation=stage.generation,
            inputs={t: i for t, i in now.items() if t in inputs},
            own={t: i for t, i in now.items() if t in own},
        )

    def _is_lost(self, release: Release, topic: str) -> bool:
        """Whether a result of a release is gone, or another topic by now."""
        now = self._context.cluster.topic_ids([topic]).get(topic)
        return now is None or now != release.own_ids.get(topic, now)

    def _tombstone(self, stage: Tombstone) -> None:
        """In one transaction; the new generation's first progress record makes it visible to followers."""
        last = self._context.progress(stage.release)
        if last is not None and last.generation == stage.generation:
            return
        if stage.release not in self._tokens:
            self._seize(stage.release, again=True)
        release = self._release(stage.release)
        ended = release.under.ended if release.under else None
        keys = self._keys(release, release.result_topic, ended.result) if ended else []
        writer = Writer(self._context.settings, stage.release, release.result_topic, release.spec.partitions)
        try:
            writer.connect()
            writer.begin()
            writer.send(release.result_topic, ((key, None, None) for key in keys))
            writer.acknowledged()
            writer.commit(None, None)
        finally:
            writer.close()
        self._context.say(f"{len(keys):,} keys")

    def _keys(self, release: Release, topic: str, upto: ResultPosition) -> list[str]:
        """The keys that a table has at a position of its result."""
        client = consumer(self._context.settings, auto_offset_reset="earliest", enable_partition_eof=True)
        try:
            start = dict.fromkeys(upto.of(topic), 0)
            found, _ = read_changes(client, topic, start, upto.of(topic), self._context.settings.request_timeout_s * 3)
        finally:
            client.close()
        return sorted(key for key, value in found.items() if value is not None)

    # -- consumers

    def _reach(self, stage: Reach) -> None:
        context, name = self._context, stage.release
        tail = ProgressTail(context.settings, name)

        def reached() -> bool:
            release = self._release(name)
            if release.state == "failed":
                raise SwitchyardError(f"{name} failed: {release.failure}",
                                      fix=f"to go back: `switchyard abandon {self._plan.id}`, then `switchyard undo {self._plan.id} --execute`")  # fmt: skip
            return self._met(release, tail.poll(0)) is not None

        try:
            context.until(
                f"{name} has not read to where the old result ended",
                reached,
                timeout_s=stage.timeout_s,
                fix=f"see `switchyard status {name}`; `switchyard resume {self._plan.id}` goes on waiting",
                poll_s=0.25,
            )
        finally:
            tail.close()

    def _met(self, release: Release, last: Progress | None) -> Mark | None:
        """Where the generation under way has met the old one's end, by its newest progress; None: it hasn't yet."""
        reached = last.reached if last is not None and last.generation == release.generation else None
        return reached if reached is not None and reached.op == self._plan.id else None

    def _compare(self, stage: CompareGenerations) -> None:
        context, settings = self._context, self._context.settings
        state = context.registry.state()
        if any(e.id == self._plan.id for e in state.evidence):
            return
        release = state.releases[stage.release]
        there, here = self._met(release, self._context.progress(release.name)), release.ended[stage.old]
        if there is None:
            raise SwitchyardError(f"{release.name} has not met the old result's end", fix="make a new plan")
        spark = context.session(here.result.records + there.result.records)
        path = evidence_path(settings, self._plan.id)
        old, new = (folded(spark, settings, release.spec, r) for r in (here.result, there.result))
        write_fold(old, new, path)
        ddl = release.spec.schema_ddl
        found = compare(spark, path, live_ddl=ddl, new_ddl=ddl, tolerance=0.0, samples=10)
        forward, backward = write_delta(settings, release.spec.app, self._plan.id, path)
        entry = EvidenceRecorded(
            id=self._plan.id, live=release.name, live_generation=stage.old, new=release.name, new_generation=stage.new,
            cut=here.boundary.position, live_result=here.result, new_result=there.result,
            summary=found.as_json(), forward=forward, backward=backward,
        )  # fmt: skip
        self._step(lambda _: [entry])
        context.say(
            f"{found.changed:,} keys differ, {found.only_live:,} are gone, {found.only_new:,} are new, {found.identical:,} the same"
        )

    def _clear(self, stage: WriteClearing) -> None:
        if self._context.registry.state().operations[self._plan.id].promoted is not None:
            return
        release = self._release(stage.release)
        ended, old = release.ended.get(stage.old), release.topic_of(stage.old)
        lost = self._is_lost(release, old)
        if lost:
            self._context.say(f"{old} is lost: which keys it had isn't known, and consumers keep their rows of them")
        keys = self._keys(release, old, ended.result) if ended and not lost else []
        topic = delta_topic(release.spec.app, self._plan.id)
        self._context.cluster.ensure_topic(topic, 1, APPEND_ONLY)
        self._cleared = DeltaTopic(self._context.settings, topic).append((key, None) for key in keys)

    def _switch(self, state: RegistryState, stage: AppendGeneration) -> Sequence[Entry]:
        operation = state.operations[self._plan.id]
        if operation.promoted is not None:
            return []
        release = state.releases[stage.release]
        ended, nothing = release.ended.get(stage.old), dict.fromkeys(range(release.spec.partitions), 0)
        start = ResultPosition(topics={release.topic_of(stage.new): nothing})
        if stage.met:
            there = self._met(release, self._context.progress(release.name))
            if there is None:
                raise SwitchyardError(f"{release.name} has not met the old result's end", fix="make a new plan")
            start = there.result
        old_end: ResultPosition | None = (
            ended.result if ended else ResultPosition(topics={release.topic_of(stage.old): nothing})
        )
        if not stage.met and self._is_lost(release, release.topic_of(stage.old)):
            # nobody can read it to its end
            old_end = None
        switch = Switch(
            number=stage.number,
            old=release.name,
            # the generation whose result consumers read; what went on writing it may be a later one
            old_generation=state.chains[stage.alias][-1].new_generation,
            old_end=old_end,
            new=release.name,
            new_generation=stage.new,
            new_start=start,
            delta=tuple(self._segments(state)),
            cut=ended.boundary.position if ended and stage.met else None,
        )
        return promotion(state, stage.alias, self._plan.id, switch)

    def _segments(self, state: RegistryState) -> Iterator[DeltaSegment]:
        for evidence in state.evidence:
            if evidence.id == self._plan.id and evidence.forward is not None:
                yield evidence.forward
        if self._cleared is not None:
            yield self._cleared

    def _await_followers(self, stage: AwaitFollowers) -> None:
        context = self._context
        context.until(
            f"followers of {stage.alias} have not passed switch {stage.number}",
            lambda: not followers_before(context, context.registry.state(), stage.alias, stage.number),
            timeout_s=stage.timeout_s,
            fix=f"let them, or `switchyard forget-follower` one that is gone; then `switchyard resume {self._plan.id}`",
            poll_s=0.25,
        )

    # -- what is

    def _release(self, name: str) -> Release:
        return self._context.registry.state().releases[name]


def progress_of(context: Context, release: Release) -> Progress | None:
    """The newest progress record of the generation under way; where its driver has never connected, its seed; else None."""
    last = context.progress(release.name)
    if last is not None and last.generation == release.generation:
        return last
    return release.under.seed if release.under else None


def last_of(context: Context, release: Release) -> Progress | None:
    """The last committed progress record of the generation under way. Whoever could commit another one is fenced."""
    writer = Writer(context.settings, release.name, release.result_topic, release.spec.partitions)
    try:
        last = writer.connect()
        if last is not None and last.generation == release.generation:
            return last
        # its driver has never connected, so that its first record is not written
        seed = release.under.seed if release.under else None
        if seed is None:
            return None
        topic = release.result_topic
        lost = topic not in context.cluster.topic_ids([topic])
        at = dict.fromkeys(range(release.spec.partitions), 0) if lost else writer.acknowledged()
        return seed.model_copy(update={"result": ResultPosition(topics={topic: at})})
    finally:
        writer.close()


def by_group(context: Context, release: Release) -> Progress | None:
    """What the release's consumer group tells of the last batch of the generation under way; None: nothing."""
    committed, sources, batch = context.cluster.group_offsets(release.name), dict[str, dict[int, int]](), -1
    for source, topic in release.spec.topics.items():
        for partition, (offset, note) in committed.get(topic, {}).items():
            generation, colon, number = note.partition(":")
            if colon and generation == str(release.generation) and number.isdigit():
                sources.setdefault(source, {})[partition] = offset
                batch = int(number)
    if not sources:
        return None
    topic, partitions = release.result_topic, release.spec.partitions
    there = topic in context.cluster.topic_ids([topic])
    result = end_of(context.settings, topic, partitions) if there else dict.fromkeys(range(partitions), 0)
    return Progress(
        release=release.name,
        generation=release.generation,
        token=release.token,
        boundary=Boundary(batch_id=batch, position=SourcePosition(sources=sources)),
        result=ResultPosition(topics={topic: result}),
        at_ms=now_ms(),
    )


def is_unfinished(context: Context, release: Release, last: Progress | None) -> bool:
    """Whether Kafka has a batch of the generation under way, whose newest progress is `last`, that Spark's own log has not."""
    if last is None or last.boundary.batch_id < 0:
        return False
    folder = newest_folder(context.settings, release.name, release.generation)
    return folder is None or not Checkpoint(folder, release.spec.topics).committed(last.boundary.batch_id)


def _with_end(release: Release, ended: Progress) -> Release:
    return replace(release, ended={**release.ended, release.generation: ended})


def processed(
    context: Context, state: RegistryState, spec: ReleaseSpec, release: Release | None = None
) -> tuple[Span, ...]:
    """The input of which a generation of `release`, or the live release of its app, has written results.

    What only a candidate or a standby has read, or a generation that was given up, no consumer has had.
    """
    known = spans_of(release, None, _followed(state, release)) if release else []
    newest = state.live(spec.app)
    live = state.releases[newest.new] if newest is not None else None
    if live is not None and live.name != spec.release and live.spec.topics == spec.topics:
        known += spans_of(live, context.progress(live.name), _followed(state, live))
    return tuple(known)


def _followed(state: RegistryState, release: Release) -> set[int]:
    """The generations whose result consumers have read; of a release that was never live, all."""
    topics = {topic for link in state.chains.get(release.spec.app, ()) for topic in link.new_start.topics}
    found = {g for g in release.generations if release.topic_of(g) in topics}
    return {g for g in found or set(release.generations) if _same_inputs(release, g)}


def _differ(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether a topic that both know is another one in each."""
    return any(other.get(topic, found) != found for topic, found in one.items())


def _same_inputs(release: Release, generation: int) -> bool:
    """Whether a generation read the topics that the one under way reads: offsets of others of the same name mean nothing in these."""
    now, then = (release.input_ids.get(g, {}) for g in (release.generation, generation))
    return not _differ(now, then)


def cut_off(context: Context, release: Release, at: SourcePosition) -> list[str]:
    """Input of `release` behind a position, that retention has deleted."""
    first = context.cluster.first_offsets(sorted(set(release.spec.topics.values())))
    return [
        f"input from {topic}[{p}] at {offset:,}, which begins at {begins:,}"
        for source, topic in release.spec.topics.items()
        for p, offset in at.sources.get(source, {}).items()
        if (begins := first[topic].get(p, 0)) > offset
    ]


def moved_by_hand(context: Context, release: Release) -> str | None:
    """That someone else has moved the release's consumer group since its last batch, in words; None: nobody has."""
    last = context.progress(release.name)
    if last is None or last.generation != release.generation:
        return None
    committed, found = context.cluster.group_offsets(release.name), []
    for source, topic in release.spec.topics.items():
        for partition, (offset, note) in committed.get(topic, {}).items():
            here = last.boundary.position.sources.get(source, {}).get(partition)
            # drivers note generation and batch beside an offset, other tools don't
            if here is not None and offset != here and ":" not in note:
                found.append(f"{topic}[{partition}] from {here:,} to {offset:,}")
    if not found:
        return None
    return (
        f"the consumer group {release.name} was moved by another tool: {join(found)}; that is not followed. "
        f"`switchyard reset {release.name} --to-current` adopts it"
    )
