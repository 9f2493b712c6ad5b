"""Plans to start and stop the driver of a release."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.operations.lifecycle import find_release, live_release, refuse_blocked, starting_state, wanting
from orchestration.operations.looking.history import ACCEPT, history_of
from orchestration.operations.looking.parts import losses, lost_parts, refuse_lost
from orchestration.operations.looking.platform import staged_by_another
from orchestration.operations.looking.progress import deleted_input, moved_by_hand, progress_of
from orchestration.operations.planning.topics import create_results, lost_topics_again
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, join, new_id
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import BeginGeneration
from orchestration.operations.plans.stages.releases import AwaitStopped, Launch, Want
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.model.parts import Loss, Part
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import RegistryState, Release

# a candidate that has lost one of these starts again in a new generation
_REPLACED: set[Part] = {"result", "progress", "checkpoint", "input"}


def plan_start(
    context: Reading, name: str, *, force: bool = False, accept_missing: bool = False, reason: str | None = None
) -> Plan:
    """Plans to start a release's driver; keeps the one that already runs. `force` takes the lease from a running
    driver.

    Raises Refused if retention has deleted input that the release has not read yet, because its first batch would fail.
    For a candidate, which no consumer has followed, that is MissingHistory; with `accept_missing` the candidate starts
    again in a new generation.
    """
    state = context.state_for_planning()
    release = find_release(state, name)
    if release.state == "retired":
        raise Refused(
            f"{release.name} is {release.state}",
            fix=f"`switchyard stage {release.spec.app} [--from FOLDER] --execute` makes a new version",
        )
    if wanting(state, release, "running"):
        # a release that should run already may be restarted even during an operation
        refuse_blocked(state, release.name)
    candidate = starting_state(state, release) == "hydrating"
    lost = losses(context, state, release)
    gone = _replaceable(lost, candidate=candidate)
    starts_over = candidate and (release.state == "failed" or bool(gone))
    history = history_of(context, state, release, starts_over=starts_over)
    if release.state == "failed":
        context.say(f"{release.name} failed last time: {release.failure}")
    if candidate and not starts_over and history.unread and context.holder(release) is None:
        starts_over, history = True, history_of(context, state, release, starts_over=True)
    # a candidate never continues from a failed run, nor from a position whose next input is deleted
    generation = release.next_generation if starts_over else release.generation
    if candidate:
        history.require(accept=accept_missing)
    if not starts_over:
        _refuse_cut_off(context, release)
    return Plan(
        id=new_id("start"),
        operation=Kind.START,
        releases=(release.name,),
        stages=(
            *(history.stages if candidate else ()),
            *_stages_before(context, state, release, generation, lost),
            Want(release=release.name, wanted="running"),
            Launch(release=release.name, force=force),
        ),
        reason=reason,
        facts={
            "state": release.state,
            "generation": str(generation),
            **({"staged by": staged_by} if (staged_by := staged_by_another(release.spec)) else {}),
            **(history.facts if candidate else {}),
        },
        # a new generation has no position yet that could have been moved
        warnings=(
            *((moved,) if not starts_over and (moved := moved_by_hand(context, release)) else ()),
            *(loss.told for loss in lost if loss.part not in gone),
        ),
        undo=f"switchyard stop {release.name} --execute",
    )


def _replaceable(lost: list[Loss], *, candidate: bool) -> set[Part]:
    """The lost parts, which a new generation of a candidate replaces. Raises Refused if none may or can replace them."""
    gone = lost_parts(lost)
    no_input = any(loss.part == "input" and loss.how == "gone" for loss in lost)
    if not candidate or no_input or gone - _REPLACED:
        refuse_lost(lost)
    return gone


def _refuse_cut_off(context: Reading, release: Release) -> None:
    last = progress_of(context, release)
    position = last.boundary.position if last is not None else release.start
    if position is not None and context.holder(release) is None and (gone := deleted_input(context, release, position)):
        raise Refused(
            f"{release.name} can't continue, because retention deleted input that it has not read: {join(gone)}",
            fix=f"`switchyard reset {release.name} --to-earliest {ACCEPT} --execute` reads the input that is kept",
        )


def _stages_before(
    context: Reading, state: RegistryState, release: Release, generation: int, lost: Sequence[Loss]
) -> tuple[Stage, ...]:
    """What has to be done before a driver starts in `generation`."""
    if generation != release.generation:
        return _stages_of_generation(context, state, release, generation, lost)
    # a driver whose login may not create topics can't do this
    return lost_topics_again(release, [loss for loss in lost if loss.part == "dead letters"])


def _stages_of_generation(
    context: Reading, state: RegistryState, release: Release, generation: int, lost: Sequence[Loss]
) -> tuple[Stage, ...]:
    """The stages that start a new generation of a candidate, from its old start or the first offsets that are kept."""
    spec = release.spec
    first = context.cluster.first_offsets(sorted({i.topic for i in spec.inputs.values()}))
    # its old start; an input that was recreated under the same name has none
    replaced = {loss.name for loss in lost if (loss.part, loss.how) == ("input", "another")}
    started_at = {
        source: offsets
        for source, offsets in release.generations[release.generation].start.sources.items()
        if spec.topics.get(source) not in replaced
    }
    start = SourcePosition(
        sources={
            source: {p: max(o, started_at.get(source, {}).get(p, o)) for p, o in first[i.topic].items()}
            for source, i in spec.inputs.items()
        }
    )
    # if consumers come to follow the candidate meanwhile, it is one no longer
    links = len(state.chains.get(spec.app, ()))
    return (
        *create_results(spec, generation),
        *lost_topics_again(release, lost),
        BeginGeneration(release=release.name, generation=generation, start=start, old=release.generation, links=links),
    )


def plan_stop(context: Reading, name: str, *, timeout_s: float = 120.0, reason: str | None = None) -> Plan:
    """Plans to stop a release's driver at a boundary, within `timeout_s` seconds."""
    state = context.state_for_planning()
    release = find_release(state, name)
    refuse_blocked(state, release.name)
    live = live_release(state, release.spec.app)
    return Plan(
        id=new_id("stop"),
        operation=Kind.STOP,
        releases=(release.name,),
        stages=(Want(release=release.name, wanted="stopped"), AwaitStopped(release=release.name, timeout_s=timeout_s)),
        reason=reason,
        facts={"state": release.state},
        warnings=(
            f"{release.name} is live: consumers of {release.spec.app} get no new results until it is started again",
        )
        if live is release
        else (),
        undo=f"switchyard start {release.name} --execute",
    )
