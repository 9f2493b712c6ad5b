"""The position of a release, from its progress, its seed or its group, and the input that it has read."""

from __future__ import annotations

from collections.abc import Mapping

from orchestration.operations.plans.plan import join
from orchestration.operations.reading import Reading
from pipelines.engine.copies import is_logged
from pipelines.kafka.offsets import ends_of
from pipelines.kafka.progress import ProgressLost
from pipelines.model.entries import ReleaseSpec
from pipelines.model.positions import ResultPosition, SourcePosition, Span
from pipelines.model.progress import Boundary, Progress
from pipelines.model.registry import RegistryState, Release
from pipelines.model.reset import spans_of


def progress_of(context: Reading, release: Release) -> Progress | None:
    """The newest progress record of the generation under way; if its driver has never connected, its seed; otherwise
    None.
    """
    last = context.progress(release.name)
    if last is not None and last.generation == release.generation:
        return last
    return release.under.seed if release.under else None


def last_known(context: Reading, release: Release) -> Progress | None:
    """As `progress_of`, or as the release's consumer group tells. Raises ProgressLost if neither tells."""
    try:
        return progress_of(context, release) or by_group(context, release)
    except ProgressLost:
        if (last := by_group(context, release)) is None:
            raise
        return last


def by_group(context: Reading, release: Release) -> Progress | None:
    """The progress at the last batch of the generation under way, from the release's consumer group; None: it has none."""
    committed, sources, batch = context.cluster.group_offsets(release.name), dict[str, dict[int, int]](), -1
    for source, topic in release.spec.topics.items():
        for partition, (offset, note) in committed.get(topic, {}).items():
            generation, colon, number = note.partition(":")
            if colon and generation == str(release.generation) and number.isdigit():
                sources.setdefault(source, {})[partition] = offset
                batch = int(number)
    if not sources:
        return None
    there = context.cluster.topic_ids(release.result_partitions)
    ends = ends_of(context.settings, {t: n for t, n in release.result_partitions.items() if t in there})
    return Progress(
        release=release.name,
        generation=release.generation,
        token=release.token,
        boundary=Boundary(batch_id=batch, position=SourcePosition(sources=sources)),
        # a lost result starts again
        result=ResultPosition(topics={**release.result_start.topics, **ends}),
        at_ms=context.now_ms(),
    )


def end_by_group(context: Reading, release: Release) -> Progress:
    """`by_group`, for a release that consumers leave. Raises ProgressLost if the group does not tell its end exactly.

    Consumers of a stream need the offset of each source. Sources of one topic share an offset in the group, and another
    tool may have moved some offsets.
    """
    last = by_group(context, release)
    if last is None or (release.spec.streams and not _is_exact(release.spec, last.boundary.position)):
        raise ProgressLost(release.name)
    return last


def _is_exact(spec: ReleaseSpec, at: SourcePosition) -> bool:
    whole = all(at.sources.get(source, {}).keys() >= {*range(i.partitions)} for source, i in spec.inputs.items())
    return whole and len({*spec.topics.values()}) == len(spec.topics)


def is_unfinished(context: Reading, release: Release, last: Progress | None) -> bool:
    """Whether the batch of `last`, the newest progress, is committed to Kafka but missing in Spark's own log."""
    if last is None or last.boundary.batch_id < 0:
        return False
    return not is_logged(context.settings, release.name, release.generation, last.boundary.batch_id)


def processed(
    context: Reading, state: RegistryState, spec: ReleaseSpec, release: Release | None = None
) -> tuple[Span, ...]:
    """The input whose results consumers have already had, from a generation of `release` or the app's live release.

    Input that only a candidate or a standby has read, or an abandoned generation, does not count.
    """
    known = spans_of(release, None, _followed(state, release)) if release else []
    newest = state.live(spec.app)
    live = state.releases[newest.new] if newest is not None else None
    if live is not None and live.name != spec.release and live.spec.topics == spec.topics:
        known += spans_of(live, last_known(context, live), _followed(state, live))
    return tuple(known)


def _followed(state: RegistryState, release: Release) -> set[int]:
    """The generations whose result consumers have read; for a release that was never live, all generations."""
    topics = {topic for link in state.chains.get(release.spec.app, ()) for topic in link.new_start.topics}
    found = {g for g in release.generations if not topics.isdisjoint(release.topics_of(g).values())}
    return {g for g in found or set(release.generations) if _same_inputs(release, g)}


def differ(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether a topic that both know has different ids."""
    return any(other.get(topic, found) != found for topic, found in one.items())


def _same_inputs(release: Release, generation: int) -> bool:
    """Whether a generation read the same topics as the one under way. On a topic recreated under the same name, old
    offsets mean nothing.
    """
    now, then = (release.input_ids.get(g, {}) for g in (release.generation, generation))
    return not differ(now, then)


def deleted_input(context: Reading, release: Release, at: SourcePosition) -> list[str]:
    """The input of `release` from a position on that retention has deleted, as ranges of offsets; empty if nothing is
    missing.
    """
    first = context.cluster.first_offsets(sorted(set(release.spec.topics.values())))
    return [
        f"{topic}[{p}] {offset:,} to {begins - 1:,}"
        for source, topic in release.spec.topics.items()
        for p, offset in at.sources.get(source, {}).items()
        if (begins := first[topic].get(p, 0)) > offset
    ]


def moved_by_hand(context: Reading, release: Release) -> str | None:
    """A note if another tool has moved the release's consumer group since its last batch; None: it has not."""
    last = context.progress(release.name)
    if last is None or last.generation != release.generation:
        return None
    committed, found = context.cluster.group_offsets(release.name), []
    for source, topic in release.spec.topics.items():
        for partition, (offset, note) in committed.get(topic, {}).items():
            here = last.boundary.position.sources.get(source, {}).get(partition)
            # drivers store generation and batch beside an offset; other tools don't
            if here is not None and offset != here and ":" not in note:
                found.append(f"{topic}[{partition}] from {here:,} to {offset:,}")
    if not found:
        return None
    return (
        f"another tool moved the consumer group {release.name}: {join(found)}; the release ignores that. "
        f"`switchyard reset {release.name} --to-current --execute` moves the release there"
    )
