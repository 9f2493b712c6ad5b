"""The stages of a reset, in order."""

from __future__ import annotations

from orchestration.operations.lifecycle import starting_state
from orchestration.operations.planning.reset.decision import Reset
from orchestration.operations.planning.topics import create_results, lost_topics_again
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
from orchestration.operations.plans.stages.releases import AwaitStopped, DeleteTopic, Launch, Want
from orchestration.operations.reading import Reading
from pipelines.model.entries import ReleaseState, Wanted
from pipelines.model.registry import RegistryState, Release
from pipelines.model.reset import means_the_same

# the operator may resume a reset the next morning; until then no other operation may touch the release
DEADLINE_S = 24 * 3600.0
# a release finishes its batch before it stops
_STOP_TIMEOUT_S = 120.0


def stages_of(context: Reading, reset: Reset) -> tuple[Stage, ...]:
    """What a reset does: stop the release, change it while nobody runs it, start it, move consumers, delete."""
    name = reset.release.name
    return (
        *stop_stages(name, reset.release.wanted),
        *_change(context, reset),
        *_start(reset),
        *_move_consumers(reset),
        *_delete_old(reset),
    )


def _change(context: Reading, reset: Reset) -> list[Stage]:
    """The stages to apply while nobody runs the release."""
    release, name = reset.release, reset.release.name
    stages: list[Stage] = []
    if reset.keeps:
        # does something only if the driver was killed between Kafka's commit and Spark's
        stages.append(FinishBatch(release=name, timeout_s=context.settings.boot_timeout_s))
    stages += [Seize(release=name), *lost_topics_again(release, reset.lost)]
    if reset.has_own_topic:
        stages += create_results(release.spec, reset.generation)
    if reset.keeps:
        stages.append(
            InheritState(
                release=name, old=release.generation, generation=reset.generation, at=reset.old, position=reset.new
            )
        )
    stages.append(_begin(reset))
    if reset.choice.output == "tombstone":
        stages.append(Tombstone(release=name, generation=reset.generation))
    return [*stages, GiveBack(release=name)]


def _begin(reset: Reset) -> BeginGeneration:
    release = reset.release
    known = release.generations[release.generation].result or release.generation
    return BeginGeneration(
        release=release.name,
        generation=reset.generation,
        start=reset.new,
        keeps=reset.keeps,
        result=None if reset.has_own_topic else known,
        meet=reset.meets,
        until=reset.end if reset.left_out is None else reset.left_out.start,
        then=None if reset.left_out is None else reset.left_out.end,
        cleared=reset.choice.output == "tombstone",
        max_records_per_batch=reset.request.max_records_per_batch,
        state=_state_after(reset.state, release),
        old=release.generation,
        links=_links(reset),
        # the release may still read input before it stops. If the request would then mean something else, the plan holds
        # for this position only
        at=None if means_the_same(reset.choice, reset.request.target) else reset.old,
    )


def _links(reset: Reset) -> int:
    return len(reset.state.chains.get(reset.release.spec.app, ()))


def _stays_stopped(reset: Reset) -> bool:
    return reset.release.wanted == "stopped" or reset.request.stay_stopped


def _start(reset: Reset) -> list[Stage]:
    # started before consumers move: reading the keys of a large result takes longer than everything else
    if _stays_stopped(reset) and not reset.meets:
        return []
    return start_stages(reset.release.name)


def _is_switched(reset: Reset) -> bool:
    """Whether consumers move to another result."""
    return reset.choice.live and reset.has_own_topic


def _move_consumers(reset: Reset) -> list[Stage]:
    """Moves consumers when the replay has reached the old end, or at once."""
    if not _is_switched(reset):
        return []
    release, name, old = reset.release, reset.release.name, reset.read
    stages: list[Stage] = []
    if reset.meets:
        stages.append(Reach(release=name, timeout_s=reset.request.timeout_s))
    if release.spec.tables and reset.meets:
        stages.append(CompareGenerations(release=name, old=release.generation, new=reset.generation))
    elif release.spec.tables:
        stages.append(WriteClearing(release=name, old=old))
    number = _links(reset) + 1
    stages.append(AppendGeneration(alias=release.spec.app, number=number, release=name, old=old, new=reset.generation,
                                   met=reset.meets))  # fmt: skip
    return [*stages, *(stop_stages(name) if _stays_stopped(reset) and reset.meets else ())]


def _delete_old(reset: Reset) -> list[Stage]:
    if reset.choice.output != "truncate":
        return []
    release, stages = reset.release, list[Stage]()
    if _is_switched(reset):
        stages.append(
            AwaitFollowers(alias=release.spec.app, number=_links(reset) + 1, timeout_s=reset.request.timeout_s)
        )
    for gone in sorted({reset.read, release.generation}):
        stages += [DeleteTopic(name=topic) for topic in release.topics_of(gone).values()]
        stages.append(DeleteCheckpoint(release=release.name, generation=gone))
    return stages


def start_stages(name: str) -> list[Stage]:
    """Starts a release again."""
    return [Want(release=name, wanted="running"), Launch(release=name)]


def stop_stages(name: str, before: Wanted | None = None) -> list[Stage]:
    """Stops a release. `before`: whether it should run, when the plan was made: `running` or `stopped`."""
    return [
        Want(release=name, wanted="stopped", before=before),
        AwaitStopped(release=name, timeout_s=_STOP_TIMEOUT_S),
    ]


def _state_after(state: RegistryState, release: Release) -> ReleaseState:
    """The live release stays live; any other must catch up again before it may be promoted."""
    return "staged" if release.state == "staged" else starting_state(state, release)
