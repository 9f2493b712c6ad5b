"""Applies the stages that take a release from one generation to another: a reset, and its undo.

The registry's entry of the new generation is the step that counts. Everything before it can be done again; everything
after it does only what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestration.operations.applying.effects import applies
from orchestration.operations.applying.fencing import has_lost_progress, last_of
from orchestration.operations.applying.work import Work
from orchestration.operations.journal import has_started_generation, refuse_other_generation
from orchestration.operations.lifecycle import find_release, refuse_blocked
from orchestration.operations.looking.progress import by_group, differ, is_unfinished, processed, progress_of
from orchestration.operations.plans.stages.generations import (
    BeginGeneration,
    DeleteCheckpoint,
    FinishBatch,
    GiveBack,
    InheritState,
    Seize,
)
from pipelines.engine.checkpoint import Checkpoint, inherit, release_folder
from pipelines.engine.copies import copies_of, forget_checkpoint, whole_checkpoint
from pipelines.engine.lease import this_process
from pipelines.errors import Refused
from pipelines.model.entries import Entry, GenerationStarted, LeaseEnded, LeaseTaken, StateSet, TopicsKnown
from pipelines.model.names import dead_letter_topic, progress_topic, result_topic
from pipelines.model.positions import ResultPosition
from pipelines.model.progress import MARKS, Boundary, Progress
from pipelines.model.registry import RegistryState, Release


def seed_of(entry: BeginGeneration, old: Release) -> Progress:
    """The progress record that the generation of `entry` starts from. Its batch is -1 if the generation starts from
    nothing. The driver of the generation writes the record, with the result position at that time.
    """
    # marks belong to operations on the earlier generation
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


@applies(FinishBatch)
def finish_batch(work: Work, stage: FinishBatch) -> None:
    context, name = work.context, stage.release
    last = progress_of(context, work.release(name))
    if last is None or not is_unfinished(context, work.release(name), last):
        return

    def finished() -> bool:
        release = work.release(name)
        return not is_unfinished(context, release, last) and context.holder(release) is None

    work.now()
    where = context.launcher.launch(name, settle=True)
    context.until(
        f"{name} has not finished batch {last.boundary.batch_id}",
        finished,
        timeout_s=stage.timeout_s,
        fix=f"see {where}; or give its state up: `switchyard reset {name} --to-earliest`",
        poll_s=0.1,
    )


@applies(Seize)
def seize(work: Work, stage: Seize) -> None:
    if has_started_generation(work.context.registry.state(), work.plan.id):
        raise Refused(
            f"someone else is carrying out {work.plan.id} and has already started its generation",
            fix="wait until it is done; `switchyard operations` shows who carries it out",
        )
    take_lease(work, stage.release)


def take_lease(work: Work, name: str) -> None:
    """Takes the lease of a stopped release for this process. Raises Refused if a driver runs it."""
    release = work.release(name)
    holder = work.holder(name)
    if holder is not None:
        raise Refused(f"{name} is run by {holder}", fix=f"`switchyard stop {name} --execute`, then try again")
    mine = this_process(work.context.settings)

    def decide(state: RegistryState) -> Sequence[Entry]:
        refuse_blocked(state, name, but=work.plan.id)
        if state.releases[name].token != release.token:
            raise Refused(f"{name} was started in the meantime", fix=f"see `switchyard status {name}`, then try again")
        # even if the answer is lost, it may be taken
        work.tokens[name] = release.next_token
        return [LeaseTaken(release=name, token=release.next_token, holder=mine)]

    work.step(decide)


@applies(GiveBack)
def give_lease_back(work: Work, stage: GiveBack) -> None:
    give_back(work, stage.release)


def give_back(work: Work, name: str) -> None:
    """Ends the lease that this process took for its operation. If it took none: the one that an earlier operator of the
    operation left behind.
    """
    token = work.tokens.get(name)

    def decide(state: RegistryState) -> Sequence[Entry]:
        lease = state.releases[name].lease
        if lease is None or lease.op != work.plan.id or state.releases[name].lease_ended:
            return []
        if token is None:
            mine = work.is_carried_here(state)
        else:
            # a token that this process asked for, but did not get, may be another's by now
            mine = (lease.token, lease.holder) == (token, this_process(work.context.settings))
        return [LeaseEnded(release=name, token=lease.token)] if mine else []

    # even if the operation has ended by now
    work.context.registry.step(decide, op=work.plan.id)
    work.tokens.pop(name, None)


def still_held(work: Work, name: str) -> Release:
    """A release, as the registry has it now. Call it directly before changing what the release's next driver relies on.

    Raises Refused if the operation was ended, or if its lease of the release was taken over.
    """
    release = work.now().releases[name]
    _refuse_started(work, release)
    return release


def _refuse_started(work: Work, release: Release) -> None:
    if release.token != work.tokens.get(release.name, release.token):
        raise Refused(f"{release.name} was started in the meantime", fix=work.plan.again)


@applies(InheritState)
def inherit_state(work: Work, stage: InheritState) -> None:
    settings, release = work.context.settings, work.release(stage.release)
    last, source = progress_of(work.context, release), whole_checkpoint(settings, stage.release, stage.old)
    if last is None or source is None:
        raise Refused(
            f"{stage.release} has no state to keep",
            fix=f"`switchyard reset {stage.release} --to-earliest --execute` starts from an empty state",
        )
    if not last.boundary.position.same(stage.at):
        raise Refused(
            f"{stage.release} has read more input since the plan was made",
            fix=f"the release is stopped now; {work.plan.again}",
        )

    def move(copy: Path) -> None:
        Checkpoint(copy, release.spec.topics, release.name).move_end_of(last.boundary.batch_id, stage.position)
        # or a driver of another operation's generation would start with this state
        still_held(work, stage.release)

    token = work.tokens[stage.release]
    made = inherit(settings, stage.release, stage.generation, token, source, move)
    copies = copies_of(settings, stage.release, stage.generation)
    if copies is not None:
        # the driver may start on another host. An earlier attempt may have left copies with other batches
        copies.delete()
        copies.write(made, token, None)


@applies(BeginGeneration)
def begin_generation(work: Work, stage: BeginGeneration) -> None:
    name = stage.release
    before = still_held(work, name)
    # a start gives a candidate a new generation without holding its lease; a reset or an undo holds it
    ended = _ended(work, before) if name in work.tokens else None
    old = before if ended is None else _with_end(before, ended)
    seen = processed(work.context, work.context.registry.state(), before.spec, old)
    known = _topics(work, before, stage)
    if differ(known.inputs, before.input_ids.get(before.generation, {})):
        # old offsets mean nothing on a topic recreated under the same name
        seen = ()

    def decide(state: RegistryState) -> Sequence[Entry]:
        release = state.releases[name]
        if release.under is not None and release.under.op == work.plan.id:
            return []
        _refuse_overtaken(work, state, stage, ended)
        if not stage.again and not stage.keeps:
            # left by an earlier attempt that ended before it started this generation. A driver that runs the generation
            # has a newer token than the release had before
            forget_checkpoint(work.context.settings, name, stage.generation, before.token)
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

    work.step(decide)


def _refuse_overtaken(work: Work, state: RegistryState, stage: BeginGeneration, ended: Progress | None) -> None:
    """Raises Refused if the release is no longer as planned. `ended`: where its current generation ended."""
    name, release = stage.release, state.releases[stage.release]
    # another operation on the release relies on its current generation
    refuse_blocked(state, name, but=work.plan.id)
    _refuse_started(work, release)
    refuse_other_generation(state, stage, work.plan)
    if stage.at is not None and ended is not None and not ended.boundary.position.same(stage.at):
        raise Refused(
            f"{name} has read more input since the plan was made",
            fix=f"the release is stopped now; {work.plan.again}",
        )
    if not stage.again and stage.generation <= max(release.generations, default=0):
        raise Refused(f"{name} already has generation {stage.generation}", fix=work.plan.again)


def _ended(work: Work, release: Release) -> Progress | None:
    """The last committed progress record. If the progress topic is lost, a record made from the consumer group's
    offsets, which were committed together with it.
    """
    last = last_of(work.context, release)
    lost = last is None or has_lost_progress(work.context, release)
    return (by_group(work.context, release) or last) if lost else last


def _with_end(release: Release, ended: Progress) -> Release:
    return replace(release, ended={**release.ended, release.generation: ended})


def _topics(work: Work, release: Release, stage: BeginGeneration) -> TopicsKnown:
    """The current ids of the topics that the generation reads and writes; a resumed generation keeps its known ids."""
    name = stage.release
    own = [progress_topic(name), dead_letter_topic(name)]
    if not stage.again and stage.result is None:
        own += [result_topic(name, stage.generation, result) for result in release.spec.outputs]
    inputs = set(release.spec.topics.values()) if not stage.again else set()
    now = work.context.cluster.topic_ids({*own, *inputs})
    return TopicsKnown(
        release=name,
        generation=stage.generation,
        inputs={t: i for t, i in now.items() if t in inputs},
        own={t: i for t, i in now.items() if t in own},
    )


@applies(DeleteCheckpoint)
def delete_checkpoint(work: Work, stage: DeleteCheckpoint) -> None:
    work.refuse_foreign(stage.release)
    # a name that leads out of the store is refused as such
    release_folder(work.context.settings, stage.release)
    release = find_release(work.now(), stage.release)
    if stage.generation == release.generation:
        raise work.in_use(f"the checkpoint of generation {stage.generation}", [stage.release])
    # a driver that runs the generation again, while this process sleeps, has a newer token
    forget_checkpoint(work.context.settings, stage.release, stage.generation, release.token)
