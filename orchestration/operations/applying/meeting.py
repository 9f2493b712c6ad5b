"""Applies the stages by which two releases meet at one boundary, or one continues without the other."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.operations.applying.effects import applies
from orchestration.operations.applying.fencing import end_of
from orchestration.operations.applying.work import Work
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.stages.switching import Align, ChooseStart, Fence, FlagBoundary, Meet, TakeNewest
from pipelines.engine.lease import this_process
from pipelines.errors import SwitchyardError
from pipelines.kafka.heartbeats import HeartbeatTail
from pipelines.kafka.progress import progress_history
from pipelines.model.entries import AlignOrdered, Entry, LeaseEnded, LeaseTaken, MarkOrdered, WantedSet
from pipelines.model.progress import Mark, Progress
from pipelines.model.registry import RegistryState
from pipelines.model.switch import choose_start, of_generation

_SHORT_BATCH_MS = 5_000


def order(plan_id: str, stage: Align) -> AlignOrdered:
    """The entry that asks a release to pause."""
    return AlignOrdered(id=plan_id, release=stage.release, other=stage.other, switch=stage.switch)


@applies(Align)
def align(work: Work, stage: Align) -> None:
    context, plan_id = work.context, work.plan.id
    if work.operation(context.registry.known).align is None:
        work.step(lambda state: [] if work.operation(state).align is not None else [order(plan_id, stage)])
    beats = HeartbeatTail(context.settings)
    try:
        # whichever comes first: the heartbeat that promises where it pauses, or the boundary at which it has paused
        work.await_progress(stage.release, stage.timeout_s, f"{stage.release} has not paused",
                            lambda p: _paused(work, p) or _promised(work, stage, beats))  # fmt: skip
    finally:
        beats.close()


def _paused(work: Work, progress: Progress) -> bool:
    if progress.paused is None or progress.paused.op != work.plan.id:
        return False
    work.past = progress.paused.boundary.position
    return True


def _promised(work: Work, stage: Align, beats: HeartbeatTail) -> bool:
    token = work.context.registry.known.releases[stage.release].token
    for beat in beats.poll(0):
        # with a switch, consumers also wait for the batch under way; so its promise counts only if batches are short
        short = stage.switch is None or 0 < beat.batch_ms <= _SHORT_BATCH_MS
        word = beat.pausing if (beat.release, beat.token) == (stage.release, token) else None
        if word is not None and word.op == work.plan.id and short:
            work.past = word.by
            return True
    return False


@applies(FlagBoundary)
def flag_boundary(work: Work, stage: FlagBoundary) -> None:
    plan_id = work.plan.id

    def decide(state: RegistryState) -> Sequence[Entry]:
        if work.operation(state).mark is not None:
            return []
        if work.past is None:
            raise SwitchyardError(f"{plan_id} has not paused {stage.release}", fix=work.plan.again)
        return [
            MarkOrdered(
                id=plan_id,
                release=stage.other,
                past=work.past,
                switch=stage.switch,
                alias=stage.alias,
                deadline_ms=work.context.now_ms() + int(stage.deadline_s * 1000),
            )
        ]

    work.step(decide)
    name = "evidence" if stage.switch is None else "barrier"
    # a live release that hangs, or whose batch fails, flags nothing
    fence = f"`switchyard rollback {stage.alias} --fence --execute` goes back without waiting for it"
    work.await_progress(stage.other, stage.deadline_s, f"{stage.other} has not flagged a boundary",
                        lambda p: (m := getattr(p, name)) is not None and m.op == plan_id,
                        fix=fence if work.plan.operation is Kind.ROLLBACK else "")  # fmt: skip


@applies(Meet)
def meet(work: Work, stage: Meet) -> None:
    work.await_progress(stage.release, stage.timeout_s, f"{stage.release} has not met {stage.other}",
                        lambda p: p.aligned is not None and p.aligned.op == work.plan.id)  # fmt: skip


@applies(Fence)
def fence(work: Work, stage: Fence) -> None:
    """A newer token stops a driver that still reads the registry; `init_transactions` fences one that does not."""
    name, holder = stage.release, this_process(work.context.settings)

    def decide(state: RegistryState) -> Sequence[Entry]:
        token = state.releases[name].next_token
        return [
            WantedSet(release=name, wanted="stopped"),
            LeaseTaken(release=name, token=token, holder=holder),
            LeaseEnded(release=name, token=token),
        ]

    last = end_of(work.context, work.step(decide).releases[name])
    if last is None:
        raise SwitchyardError(
            f"{name} has committed nothing yet",
            fix=f"`switchyard start {name} --execute`, then `switchyard wait {name}`",
        )
    work.ends[name] = Mark(op=work.plan.id, boundary=last.boundary, result=last.result)


@applies(ChooseStart)
def choose_where_to_start(work: Work, stage: ChooseStart) -> None:
    end = work.ends[stage.other].boundary.position
    history = of_generation(
        progress_history(work.context.settings, stage.release), work.release(stage.release).generation
    )
    found = choose_start(history, end, stage.allowed)
    work.ends[stage.release] = Mark(op=work.plan.id, boundary=found.boundary, result=found.result)


@applies(TakeNewest)
def take_newest(work: Work, stage: TakeNewest) -> None:
    last = work.context.progress(stage.release)
    if last is None or last.generation != work.release(stage.release).generation:
        raise SwitchyardError(
            f"{stage.release} has committed nothing yet", fix=f"`switchyard wait {stage.release}`, then try again"
        )
    work.ends[stage.release] = Mark(op=work.plan.id, boundary=last.boundary, result=last.result)
