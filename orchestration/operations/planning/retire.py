"""Plans to delete everything that a release owns, as the registry records it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestration.operations.lifecycle import find_release, owned_topics, refuse_blocked
from orchestration.operations.looking.files import is_left
from orchestration.operations.looking.in_use import refuse_live, refuse_needed
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, join, new_id
from orchestration.operations.plans.stages.releases import (
    AwaitStopped,
    DeleteFiles,
    DeleteGroup,
    DeleteTopic,
    SetState,
    Want,
)
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.model.entries import EvidenceRecorded
from pipelines.model.names import is_delta_topic
from pipelines.model.registry import RegistryState, Release


def plan_retire(
    context: Reading,
    name: str,
    *,
    after_s: float = 0.0,
    reason: str | None = None,
    clock_ms: Callable[[], int] | None = None,
) -> Plan:
    """Plans to delete the topics, group, checkpoints and code of one release. Deletes only what the registry records.

    Raises Refused while the release is live, has been out of use for less than `after_s` seconds, or is needed by a
    release or a follower; the error names who needs it.
    """
    state = context.state_for_planning()
    release = find_release(state, name)
    refuse_live(state, release)
    refuse_blocked(state, release.name)
    idle_s = ((clock_ms or context.now_ms)() - _out_of_use_ms(release)) / 1000
    # a half-retired release can't be used any more, so the rest is deleted without waiting
    if idle_s < after_s and release.state != "retired":
        raise Refused(
            f"{release.name} has been out of use for only {idle_s:,.0f} s, less than --after {after_s:,.0f} s",
            fix=f"wait, or give a shorter time: `switchyard retire {release.name} --after 0s --execute`",
        )
    # what is left of a retired release is of no use to anyone
    if release.state != "retired":
        refuse_needed(context, state, release)
    # from the whole log: the state keeps only the newest evidence
    compared = [
        e for e in context.registry.history() if isinstance(e, EvidenceRecorded) and release.name in (e.live, e.new)
    ]
    topics = [*owned_topics(state, release.name), *_delta_topics(state, release, compared)]
    files = _files(state, release, compared)
    if release.state == "retired" and not _is_left(context, topics, files):
        raise Refused(
            f"{release.name} is already retired", fix=f"nothing is left to do; see `switchyard log {release.name}`"
        )
    return Plan(
        id=new_id("retire"),
        operation=Kind.RETIRE,
        releases=(release.name,),
        stages=(
            Want(release=release.name, wanted="stopped"),
            AwaitStopped(release=release.name, timeout_s=120.0),
            SetState(release=release.name, state="retired"),
            *(DeleteTopic(name=topic) for topic in topics),
            DeleteGroup(group=release.name),
            files,
        ),
        reason=reason,
        facts={"state": release.state, "topics": join(topics)},
        warnings=(
            f"this can't be undone; `switchyard stage {release.spec.app} --from FOLDER --execute` stages its code as a new version",
        ),
    )


def _files(state: RegistryState, release: Release, compared: Sequence[EvidenceRecorded]) -> DeleteFiles:
    """The stage that deletes its files. Code and tables stay if another release has the same."""
    others = [r for r in state.releases.values() if r is not release and r.state != "retired"]
    shared = any(r.spec.code_digest == release.spec.code_digest for r in others)
    kept = {table.digest for r in others for table in r.spec.static_tables.values()}
    return DeleteFiles(
        release=release.name,
        code_digest=None if shared else release.spec.code_digest,
        evidence=tuple(e.id for e in compared),
        tables=tuple(sorted({t.digest for t in release.spec.static_tables.values()} - kept)),
    )


def _is_left(context: Reading, topics: Sequence[str], files: DeleteFiles) -> bool:
    """Whether an interrupted retirement left a topic, the group or a file."""
    if context.cluster.topic_names().intersection(topics) or context.cluster.group_offsets(files.release):
        return True
    return is_left(context.settings, files)


def _out_of_use_ms(release: Release) -> int:
    """When the release was staged, or its state last set, whichever is later; milliseconds since the epoch."""
    return max(release.staged_ms, release.state_ms)


def _delta_topics(state: RegistryState, release: Release, compared: Sequence[EvidenceRecorded]) -> list[str]:
    mine = {e.forward.topic for e in compared if e.forward}
    # the delta topics of resets that cleared a result
    chain = state.chains.get(release.spec.app, ())
    mine |= {segment.topic for s in chain if s.old == s.new == release.name for segment in s.delta}
    return sorted(topic for topic in mine if is_delta_topic(topic, release.spec.app))
