"""What is known about the inputs of a release, partition by partition."""

from __future__ import annotations

from dataclasses import replace

from orchestration.operations.reading import Reading
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import Release
from pipelines.model.reset import Partitions, Seen, Target


def look(context: Reading, release: Release, at: SourcePosition) -> Partitions:
    """What is known about each partition of the inputs of a release that is at position `at`."""
    spec, cluster = release.spec, context.cluster
    topics = sorted({i.topic for i in spec.inputs.values()})
    first, end = cluster.first_offsets(topics), cluster.end_offsets(topics)
    committed = cluster.group_offsets(release.name)
    return {
        (source, partition): Seen(
            topic=given.topic,
            first=first[given.topic][partition],
            end=limit,
            position=at.sources.get(source, {}).get(partition, first[given.topic][partition]),
            committed=committed.get(given.topic, {}).get(partition, (None, ""))[0],
        )
        for source, given in spec.inputs.items()
        for partition, limit in end[given.topic].items()
    }


def timed(context: Reading, seen: Partitions, target: Target | None) -> Partitions:
    """`seen`, with the offsets at the time that `target` names, if it names one."""
    if target is None or target.kind != "datetime":
        return seen
    found = context.cluster.offsets_at(sorted({here.topic for here in seen.values()}), target.at_ms)
    return {
        (source, partition): replace(here, at_time=found.get(here.topic, {}).get(partition))
        for (source, partition), here in seen.items()
    }
