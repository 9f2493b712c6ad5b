"""Ends the archives of resets whose time is over: results that nobody reads any more, and states that nobody goes back to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestration.operations import journal
from orchestration.operations.context import Context
from orchestration.operations.in_use import followers_before, readers_of
from orchestration.operations.lifecycle import find_release, refuse_blocked
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, join, new_id
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import DeleteCheckpoint
from orchestration.operations.plans.stages.releases import DeleteTopic
from pipelines.engine.checkpoint import newest_folder, size_of
from pipelines.errors import Refused
from pipelines.kafka.registry import now_ms
from pipelines.model.registry import RegistryState, Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What a generation that is over has left. `topic`: None where it is gone, or still in use. Bytes of its state."""

    generation: int
    ended_ms: int
    topic: str | None
    kept_for: tuple[str, ...]
    state_bytes: int
    has_state: bool


def archives_of(context: Context, state: RegistryState, release: Release) -> list[Archive]:
    """The archives of a release's resets, oldest first."""
    there = context.cluster.topic_names()
    ended_ms = {generation: release.ended_ms.get(generation, 0) for generation in release.ended}
    found = []
    for generation in sorted(release.ended):
        topic = release.topic_of(generation)
        # of several generations that wrote one topic, it is the archive of the one that ended last
        sharing = [other for other in release.ended if release.topic_of(other) == topic]
        owns = topic != release.result_topic and generation == max(sharing, key=lambda other: ended_ms[other])
        # a topic that is written on is nobody's archive, and what it was written with may go
        kept_for = () if topic == release.result_topic else tuple(needing_result(context, state, release, topic))
        folder = newest_folder(context.settings, release.name, generation)
        archive = Archive(
            generation=generation,
            ended_ms=ended_ms[generation],
            topic=topic if topic in there and owns else None,
            kept_for=kept_for,
            state_bytes=size_of(folder),
            has_state=folder is not None,
        )
        if archive.topic is not None or archive.has_state:
            found.append(archive)
    return found


def needing_result(context: Context, state: RegistryState, release: Release, topic: str) -> list[str]:
    """Who still needs a result: consumers that have not been moved, or have not come to its end; releases that read it."""
    chain = state.chains.get(release.spec.app, ())
    if chain and topic in chain[-1].new_start.topics:
        return [f"alias {release.spec.app}"]
    behind = followers_in(context, state, release.spec.app, topic)
    return [*(f"follower {group}" for group in behind), *(r.name for r in readers_of(state, topic))]


def followers_in(context: Context, state: RegistryState, alias: str, topic: str) -> list[str]:
    """Groups of the followers of `alias` that a switch out of a result has yet to lead out of it."""
    left = [s.number for s in state.chains.get(alias, ()) if s.old_end is not None and topic in s.old_end.topics]
    return followers_before(context, state, alias, max(left)) if left else []


def plan_clean(
    context: Context,
    name: str,
    *,
    after_s: float | None = None,
    reason: str | None = None,
    clock_ms: Callable[[], int] = now_ms,
) -> Plan:
    """Deletes what resets of a release have archived longer ago than `after_s` (None: the setting). It can't be undone.

    Raises Refused where nothing is as old, or all that is has readers.
    """
    state = journal.standing(context.registry)
    release = find_release(state, name)
    refuse_blocked(state, release.name)
    keep_s = context.settings.archive_keep_s if after_s is None else after_s
    archives = archives_of(context, state, release)
    over = [a for a in archives if clock_ms() - a.ended_ms >= keep_s * 1000]
    stages: list[Stage] = []
    for archive in over:
        if archive.topic is not None and not archive.kept_for:
            stages.append(DeleteTopic(name=archive.topic))
        if archive.has_state and not archive.kept_for:
            stages.append(DeleteCheckpoint(release=release.name, generation=archive.generation))
    held = {f"generation {a.generation} is still needed by {join(a.kept_for)}" for a in over if a.kept_for}
    if not stages:
        why = "; ".join(sorted(held)) or f"{len(archives)} younger than {keep_s:,.0f} s"
        raise Refused(
            f"nothing of {release.name} is to be cleaned: {why}", fix="give a shorter --after, or let them pass"
        )
    return Plan(
        id=new_id("clean"),
        operation=Kind.CLEAN,
        releases=(release.name,),
        stages=tuple(stages),
        reason=reason,
        facts={"archives": join([f"generation {a.generation}" for a in over if not a.kept_for])},
        warnings=(*sorted(held), "this can't be undone, and resets that it concerns can't be either"),
    )


def to_clean(context: Context, state: RegistryState, clock_ms: Callable[[], int] = now_ms) -> list[str]:
    """Releases that have archives whose time is over and that nobody needs."""
    keep_ms = context.settings.archive_keep_s * 1000
    return [
        release.name
        for release in state.releases.values()
        if release.state != "retired"
        and release.ended
        and state.blocking(release.name) is None
        and any(not a.kept_for and clock_ms() - a.ended_ms >= keep_ms for a in archives_of(context, state, release))
    ]
