"""The archives of resets: results that no release writes any more, and states that an undo would use."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.operations.looking.in_use import needing_result
from orchestration.operations.reading import Reading
from pipelines.engine.copies import checkpoint_bytes, has_checkpoint
from pipelines.model.registry import RegistryState, Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What an ended generation left. `topics`: its results; none that was deleted or is still in use. `kept_for`: who
    still needs a result. `ended_ms`: milliseconds since the epoch. `state_bytes`: size of its state.
    """

    generation: int
    ended_ms: int
    topics: tuple[str, ...]
    kept_for: tuple[str, ...]
    state_bytes: int
    has_state: bool


def archives_of(context: Reading, state: RegistryState, release: Release) -> list[Archive]:
    """The archives of a release's resets, oldest first."""
    there = context.cluster.topic_names()
    ended_ms = {generation: release.ended_ms.get(generation, 0) for generation in release.ended}
    found = []
    for generation in sorted(release.ended):
        topics = release.topics_of(generation)
        written = topics == release.result_topics
        # what several generations wrote is the archive of the one that ended last
        sharing = [other for other in release.ended if release.topics_of(other) == topics]
        owns = not written and generation == max(sharing, key=lambda other: ended_ms[other])
        # a topic that is still written is no archive, so nobody needs the state of an earlier generation for it
        kept_for = () if written else tuple(needing_result(context, state, release, topics.values()))
        archive = Archive(
            generation=generation,
            ended_ms=ended_ms[generation],
            topics=tuple(topic for topic in topics.values() if topic in there and owns),
            kept_for=kept_for,
            state_bytes=checkpoint_bytes(context.settings, release.name, generation),
            has_state=has_checkpoint(context.settings, release.name, generation),
        )
        if archive.topics or archive.has_state:
            found.append(archive)
    return found
