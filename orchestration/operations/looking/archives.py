"""The archives of resets: results that no release writes any more, and states that an undo would use."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.operations.looking.in_use import needing_result
from orchestration.operations.reading import Reading
from pipelines.engine.checkpoint import newest_folder, size_of
from pipelines.model.registry import RegistryState, Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What an ended generation left. `topic`: its result; None if it was deleted or is still in use. `kept_for`: who
    still needs the result. `ended_ms`: milliseconds since the epoch. `state_bytes`: size of its state.
    """

    generation: int
    ended_ms: int
    topic: str | None
    kept_for: tuple[str, ...]
    state_bytes: int
    has_state: bool


def archives_of(context: Reading, state: RegistryState, release: Release) -> list[Archive]:
    """The archives of a release's resets, oldest first."""
    there = context.cluster.topic_names()
    ended_ms = {generation: release.ended_ms.get(generation, 0) for generation in release.ended}
    found = []
    for generation in sorted(release.ended):
        topic = release.topic_of(generation)
        # a topic that several generations wrote is the archive of the one that ended last
        sharing = [other for other in release.ended if release.topic_of(other) == topic]
        owns = topic != release.result_topic and generation == max(sharing, key=lambda other: ended_ms[other])
        # a topic that is still written is no archive, so nobody needs the state of an earlier generation for it
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
