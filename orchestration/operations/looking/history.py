"""Whether a release can read what the live one has read; what it can't has to be accepted, in words, before consumers move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from orchestration.operations.lifecycle import live_release
from orchestration.operations.looking.progress import progress_of
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.releases import AcceptHistory
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.kafka.registry import now_ms
from pipelines.model.missing import Gap, InputNow, Reader, cut_from, may_be_missing, missing, told, without
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import RegistryState, Release

ACCEPT = "--missing-history accept"


class MissingHistory(Refused):
    """A release can't read input that another has read, or that it was to read, and nobody has accepted that. `gaps`: which."""

    def __init__(self, what: str, fix: str, gaps: tuple[Gap, ...]) -> None:
        super().__init__(what, fix)
        self.gaps = gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What a release `name` lacks of the input that `of`, the release that it is compared with, has read (None: of its own).

    `left`: what of it nobody has accepted. `unread`: what it has yet to read, and can't.
    """

    name: str
    of: str | None
    gaps: tuple[Gap, ...] = ()
    left: tuple[Gap, ...] = ()
    unread: tuple[Gap, ...] = ()

    def require(self, *, accept: bool) -> None:
        """Raises MissingHistory where something is missing that nobody has accepted, unless `accept` does it now."""
        if not self.left or accept:
            return
        whose = f"that {self.of} has read" if self.of and self.left != self.unread else "that it was to read"
        raise MissingHistory(
            f"{self.name} can't have all the input {whose}: {told(self.left)}",
            fix=f"restore the input from an archive, and stage a version that reads it; or accept that the result lacks it: {ACCEPT}",
            gaps=self.left,
        )

    @property
    def facts(self) -> dict[str, str]:
        """What a plan shows of it."""
        if not self.gaps:
            return {}
        how = "accepted by this command" if self.left else "accepted before"
        return {"missing history": f"{told(self.gaps)}; {how}"}

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What records that it is accepted."""
        return (AcceptHistory(release=self.name, missing=self.left),) if self.left else ()


def history_of(
    context: Reading, state: RegistryState, release: Release, other: Release | None = None, *, anew: bool = False
) -> History:
    """Of a release against `other`, or the live release of its app. `anew`: of its next generation, which has read nothing yet."""
    theirs = other or live_release(state, release.spec.app)
    theirs = None if theirs is release else theirs
    now = context.cluster.inputs_now(sorted(set(release.spec.topics.values())))
    # without anything to hold it against, or before its first generation, nothing can be said
    if not now or release.start is None:
        return History(name=release.name, of=theirs.name if theirs else None)
    ours, held = _begun(release), _begun(theirs) if theirs else None
    if anew:
        ours = replace(ours, since_ms=now_ms(), ids={})
    # how far they have read is asked for only where it matters
    if may_be_missing(held, ours, now):
        ours = ours if anew else _read(context, release, ours)
        held = _read(context, theirs, held) if theirs and held else None
    gaps = missing(held, ours, now)
    return History(
        name=release.name,
        of=theirs.name if theirs else None,
        gaps=gaps,
        left=without(gaps, release.accepted),
        unread=cut_from(ours, now),
    )


def history_of_staging(
    context: Reading, state: RegistryState, app: str, name: str, topics: Mapping[str, str], start: SourcePosition
) -> tuple[History, Mapping[str, InputNow]]:
    """Of a release that is to begin at `start`; `topics`: source -> topic. With it, what Kafka says of its inputs."""
    theirs = live_release(state, app)
    now = context.cluster.inputs_now(sorted(set(topics.values())))
    ours = Reader(begins=start.by_topic(topics), reached={}, since_ms=now_ms(), ids={})
    held = _begun(theirs) if theirs is not None else None
    if theirs is not None and held is not None and may_be_missing(held, ours, now):
        held = _read(context, theirs, held)
    gaps = missing(held, ours, now)
    return History(name=name, of=theirs.name if theirs else None, gaps=gaps, left=gaps), now


def history_of_reset(
    context: Reading, release: Release, old: SourcePosition, new: SourcePosition, moved: Set[tuple[str, int]]
) -> History:
    """Of a release that has read up to `old` and is to begin again at `new`; `moved`: topic and partition of what goes back."""
    now = context.cluster.inputs_now(sorted({topic for topic, _ in moved}))
    if not now or release.start is None:
        return History(name=release.name, of=None)
    begun = _begun(release)
    begins = {t: {p: o for p, o in offsets.items() if (t, p) in moved} for t, offsets in begun.begins.items()}
    theirs = replace(begun, begins=begins, reached=old.by_topic(release.spec.topics))
    ours = Reader(begins=new.by_topic(release.spec.topics), reached={}, since_ms=now_ms(), ids={})
    # what it has read, and what it was to read next
    gaps = (*missing(theirs, ours, now), *cut_from(theirs, now))
    return History(name=release.name, of=release.name, gaps=gaps, left=without(gaps, release.accepted))


def compaction_notes(now: Mapping[str, InputNow]) -> Sequence[str]:
    """What a plan says of inputs that are compacted, and of those whose settings may not be read."""
    notes = [
        f"{topic} is compacted, and can't be replayed as of then: older records of a key may be gone"
        for topic, known in sorted(now.items())
        if known.compacted
    ]
    unknown = [topic for topic, known in sorted(now.items()) if known.compacted is None]
    if unknown:
        notes.append(
            f"whether {', '.join(unknown)} is compacted can't be read (the ACL DescribeConfigs): of a compacted topic older records of a key may be gone"
        )
    return notes


def _begun(release: Release) -> Reader:
    """A release where its state began, as if it had read nothing yet."""
    return Reader(
        begins=release.start.by_topic(release.spec.topics) if release.start is not None else {},
        reached={},
        since_ms=release.begun_ms,
        ids=release.input_ids.get(release.generation, {}),
    )


def _read(context: Reading, release: Release, begun: Reader) -> Reader:
    """The same as far as the release has read by now."""
    last = progress_of(context, release)
    return replace(begun, reached=last.boundary.position.by_topic(release.spec.topics)) if last is not None else begun
