"""Plans an undo, which takes a reset back."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from orchestration.operations.lifecycle import refuse_blocked, starting_state
from orchestration.operations.looking.costs import cost_of, replay_rate, time_of
from orchestration.operations.looking.in_use import is_at
from orchestration.operations.looking.inputs import look
from orchestration.operations.looking.progress import deleted_input, progress_of
from orchestration.operations.planning.reset.consumers import followers_of, is_read
from orchestration.operations.planning.reset.positions import ends_of, filled
from orchestration.operations.planning.reset.refusals import refuse_over, under_way
from orchestration.operations.planning.reset.request import TIMEOUT_S
from orchestration.operations.planning.reset.show import figures_of, positions_table, way_back
from orchestration.operations.planning.reset.stages import DEADLINE_S, start_stages, stop_stages
from orchestration.operations.plans.kind import RESETS, Kind
from orchestration.operations.plans.plan import Plan, join, new_id
from orchestration.operations.plans.requests import UndoRequest
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import (
    AppendGeneration,
    BeginGeneration,
    CompareGenerations,
    GiveBack,
    Reach,
    Seize,
)
from orchestration.operations.reading import Reading
from pipelines.engine.copies import has_checkpoint
from pipelines.errors import BadUsage, Refused
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Progress
from pipelines.model.registry import Operation, RegistryState, Release
from pipelines.model.reset import move


def plan_undo(
    context: Reading, reset_id: str, *, stop: bool = False, timeout_s: float = TIMEOUT_S, reason: str | None = None
) -> Plan:
    """Plans to resume the generation that a reset ended, with the position, state and result that it had.

    Consumers that moved to the reset's result go back when the old generation has read the same input. If the same undo
    is already under way, returns its plan. Raises BadUsage for an unknown reset; Refused while it is under way or the
    release runs (unless `stop`), if the release was changed since, and if the archive was deleted.
    """
    state = context.state_for_planning()
    operation = state.known_operations.get(reset_id)
    if operation is None or operation.opened.name not in RESETS:
        raise BadUsage(f"there is no reset {reset_id}", fix=_resets(state, operation))
    release = state.releases[operation.opened.releases[0]]
    if (open_plan := under_way(state, release, UndoRequest(reset=reset_id))) is not None:
        return open_plan
    refuse_blocked(state, release.name)
    refuse_over(release)
    undo = _decide(context, state, release, reset_id, stop=stop)
    return _plan_of(context, undo, timeout_s=timeout_s, reason=reason)


def _resets(state: RegistryState, other: Operation | None) -> str:
    """Which resets there are. `other`: an operation that was given as one."""
    if other is not None and other.opened.releases:
        return f"`switchyard log {other.opened.releases[0]}` lists its resets"
    known = [o.opened for o in state.known_operations.values() if o.opened.name in RESETS]
    last = [opened.id for opened in sorted(known, key=lambda opened: opened.at_ms)[-3:]]
    return f"the last resets are: {', '.join(last)}" if last else "no release was reset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """An undo that can be done. `generation`: the one to resume, which ended at `before`. `now`: the newest progress
    record of the current generation; None: there is none.
    """

    reset: str
    state: RegistryState
    release: Release
    generation: int
    before: Progress
    now: Progress | None

    @property
    def same(self) -> bool:
        """Whether the release keeps writing the same result."""
        return self.release.topics_of(self.generation) == self.release.result_topics

    @property
    def meets(self) -> bool:
        """Whether consumers have moved to the result that the reset started."""
        newest = self.state.live(self.release.spec.app)
        return newest is not None and is_at(newest, self.release) and not self.same


def _decide(context: Reading, state: RegistryState, release: Release, reset_id: str, *, stop: bool) -> Undo:
    generation = _generation_before(state, release, reset_id)
    _refuse_deleted_archive(context, release, generation)
    holder = context.holder(release)
    if holder is not None and not stop:
        raise Refused(
            f"{release.name} is run by {holder}", fix=f"`switchyard stop {release.name} --execute`, or add --stop"
        )
    now, before = progress_of(context, release), release.ended[generation]
    undo = Undo(reset=reset_id, state=state, release=release, generation=generation, before=before, now=now)
    if undo.meets and now is not None and not now.boundary.position.dominates(before.boundary.position):
        raise Refused(
            f"{release.name} has not yet reached the position that it had before {reset_id}",
            fix=f"`switchyard start {release.name} --execute`, and undo the reset when the release has caught up",
        )
    return undo


def _generation_before(state: RegistryState, release: Release, reset_id: str) -> int:
    """The generation that `reset_id` ended. Raises Refused unless it was the last one that changed the release."""
    under = release.under
    if under is None or reset_id not in (under.op, release.generations[release.generation].op):
        started_by = (under.op if under else None) or ""
        if not any(g.op == reset_id for g in release.generations.values()):
            raise Refused(
                f"{reset_id} changed nothing, so there is nothing to undo",
                fix=f"`switchyard log {release.name}` lists the resets of the release",
            )
        changed = state.known_operations.get(started_by)
        # a start may begin a generation too, and has no undo
        undoable = changed is not None and changed.opened.name in RESETS
        raise Refused(
            f"{started_by} changed {release.name} after {reset_id}",
            fix=f"undo that one first: `switchyard undo {started_by} --stop --execute`"
            if undoable
            else f"that has no undo; to read again from the start: `switchyard reset {release.name} --to-earliest`",
        )
    generation = _ended_by(release, reset_id)
    if generation is None:
        raise Refused(
            f"the generation before {reset_id} had not started, so there is nothing to go back to",
            fix=f"read again from the start instead: `switchyard reset {release.name} --to-earliest`",
        )
    return generation


def _plan_of(context: Reading, undo: Undo, *, timeout_s: float, reason: str | None) -> Plan:
    release, name, now = undo.release, undo.release.name, undo.now
    old = now.boundary.position if now else release.generations[release.generation].start
    seen = look(context, release, old)
    to = filled(undo.before.boundary.position, seen)
    replay = SourcePosition(sources=ends_of(seen)).records_since(to)
    rate = replay_rate(context, undo.state, release.spec.app, name)
    cost = cost_of(context, release, {release.generation})
    again = move(old, to) in ("back", "mixed")
    plan_id = new_id("undo")
    # no undo leads back to a generation without a batch, or to one that cleared its result
    lasts = now is not None and not release.generations[undo.generation].cleared
    return Plan(
        id=plan_id,
        operation=Kind.UNDO,
        releases=(name,),
        alias=release.spec.app if undo.meets else None,
        request=UndoRequest(reset=undo.reset),
        stages=_stages(undo, timeout_s),
        reason=reason,
        facts={
            "request": undo.reset,
            "generation": f"{release.generation} -> {undo.generation}",
            "to read": f"{replay:,} records, {time_of(rate, name, replay)}",
            "app state": f"{cost.state}: archived",
            "result": f"{cost.result}: {'kept; the release continues to write it' if undo.same else 'archived; the release writes its old topic again'}",
            "consumers": _of_consumers(undo, again),
            "followers": join(followers_of(context, undo.state, release)),
        },
        figures={
            "replay_records": replay,
            "replay_s": rate.seconds(replay) if rate else None,
            "rate_of": rate.of if rate else None,
            **asdict(cost),
            "positions": figures_of(seen, to),
        },
        tables=(positions_table(seen, set(seen), to),),
        warnings=_warnings(undo),
        undo=way_back(context, plan_id, same=undo.same) if lasts else "",
        deadline_s=DEADLINE_S + timeout_s,
    )


def _stages(undo: Undo, timeout_s: float) -> tuple[Stage, ...]:
    release, name, generation = undo.release, undo.release.name, undo.generation
    links = len(undo.state.chains.get(release.spec.app, ()))
    stages: list[Stage] = [
        *stop_stages(name, release.wanted),
        Seize(release=name),
        BeginGeneration(
            release=name,
            generation=generation,
            start=release.generations[generation].start,
            again=True,
            result=release.generations[generation].result,
            meet=undo.meets,
            state=starting_state(undo.state, release),
            old=release.generation,
            links=links,
        ),
        GiveBack(release=name),
    ]
    if release.wanted == "running" or undo.meets:
        stages += start_stages(name)
    if undo.meets:
        stages.append(Reach(release=name, timeout_s=timeout_s))
        if release.spec.tables:
            stages.append(CompareGenerations(release=name, old=release.generation, new=generation))
        stages.append(
            AppendGeneration(alias=release.spec.app, number=links + 1, release=name,
                             old=release.generation, new=generation, met=True)
        )  # fmt: skip
        stages += stop_stages(name) if release.wanted == "stopped" else []
    return tuple(stages)


def _of_consumers(undo: Undo, again: bool) -> str:
    """What happens to consumers. `again`: whether records are read again."""
    if undo.meets:
        return "go back when both generations have read the same input"
    sees = undo.same and again and is_read(undo.state, undo.release)
    return "stay where they are" + (", and see the replay" if sees else "")


def _warnings(undo: Undo) -> tuple[str, ...]:
    warnings: tuple[str, ...] = ()
    if undo.same and undo.now is not None:
        written = _records(undo.before, undo.now)
        warnings = (f"up to {written:,} records that were written to the same result since then stay in it",)
    if undo.release.wanted == "stopped" and is_read(undo.state, undo.release):
        name = undo.release.name
        warnings = (
            *warnings,
            f"{name} is stopped: consumers get no new results until `switchyard start {name} --execute`",
        )
    return warnings


def _ended_by(release: Release, reset_id: str) -> int | None:
    """The generation that was under way when `reset_id` started another one."""
    started = next((g for g in release.generations.values() if g.op == reset_id), release.under)
    if started is None or started.ended is None:
        return None
    return started.ended.generation


def _records(before: Progress, now: Progress) -> int:
    return sum(
        offset - before.result.of(topic).get(p, 0)
        for topic, offsets in now.result.topics.items()
        for p, offset in offsets.items()
    )


def _refuse_deleted_archive(context: Reading, release: Release, generation: int) -> None:
    there, topics = context.cluster.topic_names(), list(release.topics_of(generation).values())
    gone = [f"its result {topic}" for topic in topics if topic not in there]
    ended = release.ended.get(generation)
    if ended is None:
        gone.append("its last boundary")
    elif ended.boundary.batch_id >= 0 and not has_checkpoint(context.settings, release.name, generation):
        gone.append("its state")
    if release.generations[release.generation].cleared:
        gone.append(f"what {join(topics)} held before it was cleared")
    gone += deleted_input(context, release, ended.boundary.position if ended else SourcePosition(sources={}))
    if gone:
        raise Refused(
            f"generation {generation} of {release.name} can't be resumed, because this is deleted: {join(gone)}",
            fix=f"reset it from the first offset instead: `switchyard reset {release.name} --to-earliest`; if input is deleted, add --missing-history accept",
        )
