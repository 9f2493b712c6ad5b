"""Whether a release can read what the live one has read. Someone must accept what it can't read before consumers move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from orchestration.operations.lifecycle import live_release
from orchestration.operations.looking.progress import last_known
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.releases import AcceptHistory
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.model.missing import Gap, InputNow, Reader, cut_from, may_be_missing, missing, told, without
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import RegistryState, Release

ACCEPT = "--missing-history accept"
_BY_A_VERSION = (
    "restore the input from a backup and stage a version that reads it; or accept that the result lacks it: "
    f"add {ACCEPT}, an option of stage, start, wait, diff, check, promote and reprocess"
)


class MissingHistory(Refused):
    """A release can't read input that another has read, or that it should read, and nobody accepted that. `gaps`: which
    input.
    """

    def __init__(self, what: str, fix: str, gaps: tuple[Gap, ...]) -> None:
        super().__init__(what, fix)
        self.gaps = gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The input that release `name` lacks. `of`: the release that has read that input; None: its own input.

    `gaps`: all of it. `left`: what nobody has accepted yet. `unread`: input that it has yet to read and can't read any
    more.
    """

    name: str
    of: str | None
    gaps: tuple[Gap, ...] = ()
    left: tuple[Gap, ...] = ()
    unread: tuple[Gap, ...] = ()

    def require(self, *, accept: bool, way: str = _BY_A_VERSION) -> None:
        """Raises MissingHistory if something is missing that nobody has accepted, unless `accept` accepts it now.

        `way`: what to do about it.
        """
        if not self.left or accept:
            return
        if not self.of or self.left == self.unread:
            lacks = "read all the input that it should read"
        elif self.of == self.name:
            lacks = "read again all the input that its result contains"
        else:
            lacks = f"read all the input that {self.of} has read"
        raise MissingHistory(f"{self.name} can't {lacks}: {told(self.left)}", fix=way, gaps=self.left)

    @property
    def facts(self) -> dict[str, str]:
        """What a plan shows."""
        if not self.gaps:
            return {}
        how = "accepted by this command" if self.left else "accepted before"
        return {"missing history": f"{told(self.gaps)}; {how}"}

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stage that records the acceptance, if there is something to accept."""
        return (AcceptHistory(release=self.name, missing=self.left),) if self.left else ()


def history_of(
    context: Reading, state: RegistryState, release: Release, other: Release | None = None, *, starts_over: bool = False
) -> History:
    """The history of a release, compared with `other` or with the live release of its app. `starts_over`: the history
    of its next generation, which has read nothing yet.
    """
    theirs = other or live_release(state, release.spec.app)
    theirs = None if theirs is release else theirs
    now = context.cluster.inputs_now(sorted(set(release.spec.topics.values())))
    # with nothing to compare with, or before its first generation, nothing can be missing
    if not now or release.start is None:
        return History(name=release.name, of=theirs.name if theirs else None)
    ours, held = _as_started(release), _as_started(theirs) if theirs else None
    if starts_over:
        ours = replace(ours, since_ms=context.now_ms(), ids={})
    # asks how far they have read only if it matters
    if may_be_missing(held, ours, now):
        ours = ours if starts_over else _read(context, release, ours)
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
    """The history of a release that will start at `start`, and what Kafka says about its inputs. `topics`: source ->
    topic.
    """
    theirs = live_release(state, app)
    now = context.cluster.inputs_now(sorted(set(topics.values())))
    ours = Reader(begins=start.by_topic(topics), reached={}, since_ms=context.now_ms(), ids={})
    held = _as_started(theirs) if theirs is not None else None
    if theirs is not None and held is not None and may_be_missing(held, ours, now):
        held = _read(context, theirs, held)
    gaps = missing(held, ours, now)
    return History(name=name, of=theirs.name if theirs else None, gaps=gaps, left=gaps), now


def history_of_reset(
    context: Reading, release: Release, old: SourcePosition, new: SourcePosition, moved: Set[tuple[str, int]]
) -> History:
    """The history of a release that has read up to `old` and will start again at `new`. `moved`: the (topic, partition)
    pairs that it must read completely.
    """
    now = context.cluster.inputs_now(sorted({topic for topic, _ in moved}))
    if not now or release.start is None:
        return History(name=release.name, of=None)
    reader = _as_started(release)
    begins = {t: {p: o for p, o in offsets.items() if (t, p) in moved} for t, offsets in reader.begins.items()}
    theirs = replace(reader, begins=begins, reached=old.by_topic(release.spec.topics))
    ours = Reader(begins=new.by_topic(release.spec.topics), reached={}, since_ms=context.now_ms(), ids={})
    # what is missing from the input that it has read, and from the input that it should read next
    gaps = (*missing(theirs, ours, now), *cut_from(theirs, now))
    return History(name=release.name, of=release.name, gaps=gaps, left=without(gaps, release.accepted))


def compaction_notes(now: Mapping[str, InputNow], tables: Set[str] = frozenset()) -> Sequence[str]:
    """What a plan says about inputs that are compacted, and about those whose settings this user may not read. `tables`:
    topics that the app reads as tables.
    """
    notes = [
        f"{topic} is compacted, so a replay can't see the table as it was then: compaction may have deleted older values of a key, and a row older than the oldest kept value finds no value to join"
        if topic in tables
        else f"{topic} is compacted, so a replay may differ from the first run: compaction may have deleted older records of a key"
        for topic, known in sorted(now.items())
        if known.compacted
    ]
    unknown = [topic for topic, known in sorted(now.items()) if known.compacted is None]
    if unknown:
        notes.append(
            f"can't read whether {', '.join(unknown)} is compacted (needs the ACL DescribeConfigs); compaction may have deleted older records of a key"
        )
    return notes


def _as_started(release: Release) -> Reader:
    """A release at the start of its state, as if it had read nothing yet."""
    return Reader(
        begins=release.start.by_topic(release.spec.topics) if release.start is not None else {},
        reached={},
        since_ms=release.started_ms,
        ids=release.input_ids.get(release.generation, {}),
    )


def _read(context: Reading, release: Release, reader: Reader) -> Reader:
    """The same reader, with what the release has read so far."""
    last = last_known(context, release)
    return replace(reader, reached=last.boundary.position.by_topic(release.spec.topics)) if last is not None else reader
