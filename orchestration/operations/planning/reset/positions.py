"""The positions of a reset: which partitions move, where they start and, if the replay is bounded, where they stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from orchestration.operations.looking.inputs import timed
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.plans.plan import join
from orchestration.operations.reading import Reading
from pipelines.errors import BadUsage
from pipelines.model.parts import Loss
from pipelines.model.positions import SourcePosition, Span
from pipelines.model.registry import Release
from pipelines.model.reset import Partitions, record_of, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a reset reads: from `new` on, without `left_out`, to `end` if it stops there."""

    new: SourcePosition
    end: SourcePosition | None = None
    left_out: Span | None = None


def where_to(
    context: Reading,
    release: Release,
    request: Request,
    seen: Partitions,
    scope: set[tuple[str, int]],
    old: SourcePosition,
) -> Course:
    """Where a reset of `release` starts and stops, and what it leaves out."""
    if request.target.kind == "skip":
        _only_skips(request)
        return Course(new=old, left_out=record_of(request.target, seen, release.name))
    new = resolve(request.target, timed(context, seen, request.target), scope)
    if request.until is None:
        return Course(new=new)
    end = resolve(request.until, timed(context, seen, request.until), scope, until=True)
    return Course(new=new, end=_end(request, new, end))


def _only_skips(request: Request) -> None:
    if request.chosen_state != "keep" or request.until is not None or request.inputs:
        raise BadUsage(
            "--skip skips one record and keeps the state", fix="leave out --state, --until and --input-topics"
        )


def scope_of(release: Release, seen: Partitions, request: Request) -> set[tuple[str, int]]:
    """The (source, partition) pairs that move.

    Raises BadUsage for a topic or partition that is not an input, and for a position of a partition that `inputs`
    excludes.
    """
    given = {topic: tuple(offsets) for topic, offsets in (request.target.offsets or {}).items()}
    _refuse_unknown(release, seen, given)
    _refuse_unknown(release, seen, request.inputs)
    named = dict(request.inputs) or (given if request.target.kind in ("file", "skip") else {})
    if not named:
        return set(seen)
    moved = {
        (source, p)
        for (source, p), s in seen.items()
        if s.topic in named and (named[s.topic] is None or p in (named[s.topic] or ()))
    }
    within = {(seen[pair].topic, pair[1]) for pair in moved}
    left_out = sorted({(topic, p) for topic, partitions in given.items() for p in partitions} - within)
    if left_out:
        raise BadUsage(
            f"{request.target.text} has a position for {join([f'{t}[{p}]' for t, p in left_out])}, which --input-topics does not name",
            fix="add it to --input-topics, or remove its position",
        )
    return moved


def _refuse_unknown(release: Release, seen: Partitions, named: Mapping[str, Sequence[int] | None]) -> None:
    topics = {seen_.topic for seen_ in seen.values()}
    unknown = sorted(set(named) - topics)
    if unknown:
        raise BadUsage(f"{release.name} does not read {join(unknown)}", fix=f"it reads only {join(sorted(topics))}")
    for topic, partitions in named.items():
        has = {p for (_, p), s in seen.items() if s.topic == topic}
        wrong = sorted(set(partitions or ()) - has)
        if wrong:
            raise BadUsage(f"{topic} has no partition {join([str(p) for p in wrong])}",
                           fix=f"it has {join([str(p) for p in sorted(has)])}")  # fmt: skip


def _end(request: Request, new: SourcePosition, end: SourcePosition) -> SourcePosition:
    if not end.dominates(new) or end.same(new):
        raise BadUsage(
            f"--until {request.until.text if request.until else ''} is not after {request.target.text}",
            fix="give a later end",
        )
    return end


def filled(position: SourcePosition, seen: Partitions) -> SourcePosition:
    """A position, extended by the first offsets of partitions that did not exist then."""
    sources: dict[str, dict[int, int]] = {}
    for (source, partition), here in seen.items():
        known = position.sources.get(source, {}).get(partition, here.first)
        sources.setdefault(source, {})[partition] = known
    return SourcePosition(sources=sources)


def ends_of(seen: Partitions) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (source, partition), here in seen.items():
        found.setdefault(source, {})[partition] = here.end
    return found


def read_whole(
    seen: Partitions, scope: Set[tuple[str, int]], request: Request, lost: Sequence[Loss]
) -> set[tuple[str, int]]:
    """The (topic, partition) pairs that the new state must read completely, unless someone accepts that it lacks some.

    With --to-earliest, these are all partitions that move: someone who names another position has chosen what to leave
    out. For a topic recreated under the same name, every partition counts, because old offsets mean nothing on it.
    """
    whole = request.target.kind == "earliest" and request.chosen_state == "clear"
    another = {loss.name for loss in lost if loss.part == "input" and loss.how == "another"}
    return {(here.topic, pair[1]) for pair, here in seen.items() if (whole and pair in scope) or here.topic in another}
