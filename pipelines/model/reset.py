"""Resets, as pure decisions: which options work together, where a release goes, how a new generation meets the old end.

A reset never changes a generation. It ends the generation and starts the next one elsewhere. An undo starts the old
generation again, where it ended.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pipelines.errors import Refused
from pipelines.model.entries import GenerationStarted
from pipelines.model.positions import ResultPosition, SourcePosition, Span
from pipelines.model.progress import Boundary, Mark, Progress
from pipelines.model.registry import Release
from pipelines.model.switch import Step

State = Literal["clear", "keep"]
Output = Literal["new", "truncate", "tombstone", "keep"]
Move = Literal["back", "forward", "stay", "mixed"]


# -- where to ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known about one partition of an input, as offsets. `position`: of the release. `committed`: of its
    consumer group, None if it has none. `at_time`: of the first record at or after the requested time, None if there is
    none.
    """

    topic: str
    first: int
    end: int
    position: int
    committed: int | None = None
    at_time: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to move a release. `kind`: as the command's option. `number`: of `offset` and `shift`. `at_ms`: of
    `datetime`, milliseconds since the epoch. `ago_ms`: if that was given as a time before now, how long before; else 0.
    `offsets`: of `file` and `skip`, topic -> partition -> offset. `text`: for people.
    """

    kind: Literal["earliest", "latest", "current", "datetime", "shift", "offset", "file", "skip"]
    text: str
    number: int = 0
    at_ms: int = 0
    ago_ms: int = 0
    offsets: Mapping[str, Mapping[int, int]] | None = None


Partitions = Mapping[tuple[str, int], Seen]


def resolve(
    target: Target, seen: Partitions, scope: Iterable[tuple[str, int]], *, until: bool = False
) -> SourcePosition:
    """The position that `target` means. `seen`, `scope`: by (source, partition); partitions out of scope don't move.
    `until`: it is where a bounded replay stops.

    Raises Refused with every partition that can't be moved there: an offset is never clamped to the kept range.
    """
    scope = set(scope)
    sources: dict[str, dict[int, int]] = {}
    wrong: list[str] = []
    for (source, partition), here in sorted(seen.items()):
        offset, reason = (
            (here.position, None) if (source, partition) not in scope else _goes_to(target, here, partition)
        )
        if reason:
            wrong.append(f"{here.topic}[{partition}] {reason}")
        sources.setdefault(source, {})[partition] = offset
    if wrong:
        what = f"--until {target.text}" if until else target.text
        raise Refused(f"{what} is not possible: " + "; ".join(wrong), fix=_way_out(target, until=until))
    return SourcePosition(sources=sources)


def _goes_to(target: Target, here: Seen, partition: int) -> tuple[int, str | None]:
    wanted: int | None
    missing: str | None = None
    match target.kind:
        case "earliest":
            return here.first, None
        case "latest":
            return here.end, None
        case "current":
            wanted, missing = here.committed, "has no offset in the consumer group"
        case "datetime":
            wanted, missing = here.at_time, "has no record at or after that time"
        case "shift":
            wanted = here.position + target.number
        case "offset":
            wanted = target.number
        case "file" | "skip":
            wanted, missing = (target.offsets or {}).get(here.topic, {}).get(partition), "is not in the file"
    if target.kind == "datetime" and here.end == 0:
        # the partition has never had a record, before that time or after it
        return 0, None
    if target.kind == "datetime" and here.first == here.end:
        return here.position, f"is empty: retention deleted all records before offset {here.end}"
    if wanted is None:
        return here.position, missing
    if target.kind == "datetime" and wanted == here.first > 0:
        return here.position, f"starts at {here.first}, after that time; retention deleted the earlier records"
    if wanted < here.first:
        what = "negative" if wanted < 0 else f"before the first kept record, {here.first}; retention deleted it"
        return here.position, f"offset {wanted} is {what}"
    if wanted > here.end:
        return here.position, f"offset {wanted} is past the end, {here.end}"
    return wanted, None


def _way_out(target: Target, *, until: bool) -> str:
    if until:
        return "leave out --until, or give an end that every partition has, like --until latest"
    match target.kind:
        case "current":
            return "the group has committed nothing there; name a position: --to-offset, --to-datetime or --to-earliest"
        case "datetime":
            return "choose another time, or use --to-earliest (the first kept record), --to-latest (the end) or --from-file (an offset for each partition)"
        case _:
            return "use --to-earliest (the first kept record) or --to-latest (the end), or leave the partition out with --input-topics"


def record_of(target: Target, seen: Partitions, release: str) -> Span:
    """The one record that `target` skips in `release`, between the positions before and after it. Other partitions don't
    move. If two sources read the topic, neither does one that has already read the record.

    Raises Refused if all have read it, or it doesn't exist.
    """
    [(topic, offsets)] = (target.offsets or {}).items()
    [(partition, offset)] = offsets.items()
    mine = {key: here for key, here in seen.items() if here.topic == topic and key[1] == partition}
    to_come = {key for key, here in mine.items() if here.position <= offset < here.end}
    if not to_come:
        end = max((here.end for here in mine.values()), default=0)
        what = "was already read" if offset < end else f"is past the end, {end}"
        raise Refused(
            f"{topic}[{partition}] offset {offset} {what}",
            fix=f"`switchyard bisect {release}` finds the record that makes a batch fail",
        )
    before: dict[str, dict[int, int]] = {}
    after: dict[str, dict[int, int]] = {}
    for (source, p), here in seen.items():
        before.setdefault(source, {})[p] = offset if (source, p) in to_come else here.position
        after.setdefault(source, {})[p] = offset + 1 if (source, p) in to_come else here.position
    return Span(start=SourcePosition(sources=before), end=SourcePosition(sources=after))


def move(old: SourcePosition, new: SourcePosition) -> Move:
    """The direction in which a position moves, over all partitions."""
    if new.same(old):
        return "stay"
    if old.dominates(new):
        return "back"
    return "forward" if new.dominates(old) else "mixed"


# -- which options work together ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A reset's choices. `scoped`: only some partitions move. `table`: whether a result is a table; `stream`: whether one
    is a stream beside a table. `stateful`: the app's. `bounded`: it ends.
    """

    state: State
    output: Output
    move: Move
    table: bool
    stateful: bool
    scoped: bool = False
    bounded: bool = False
    live: bool = False
    stream: bool = False

    @property
    def has_stream(self) -> bool:
        return self.stream or not self.table


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why a choice makes no sense, and what to do instead. `forced`: whether --force overrides it."""

    reason: str
    way_out: str
    forced: bool = False


def objections(choice: Choice) -> list[Objection]:
    """All objections to a choice; docs/reset.md has them as a table."""
    found: list[Objection] = []
    keeps, results = choice.state == "keep", "rows" if choice.table else "records"
    if keeps and choice.output != "keep":
        found.append(
            Objection(
                reason=f"a kept state does not write its earlier {results} again: a new or emptied result would lack them",
                way_out="use --output keep, or --state clear",
            )
        )
    if keeps and choice.move == "stay":
        found.append(
            Objection(
                reason="the release is already there", way_out="nothing is left to do, or choose another position"
            )
        )
    if keeps and choice.stateful and choice.move in ("back", "mixed"):
        found.append(
            Objection(
                reason="the kept state has already counted the records that it would read again: they would count twice",
                way_out="use --state clear",
                forced=True,
            )
        )
    if choice.output == "tombstone" and choice.has_stream:
        found.append(Objection(reason="a tombstone can't take back a stream's records", way_out="use --output new"))
    if choice.output == "keep" and choice.table and not keeps:
        found.append(
            Objection(
                reason="keys that the new run doesn't write again would keep their old rows",
                # with --output new, a bounded replay would be refused: it never reaches the old result's end
                way_out=("leave out --until, and use " if choice.bounded and choice.live else "use ")
                + "--output new, or --output tombstone to keep the topic",
                forced=True,
            )
        )
    if choice.scoped and not keeps and (choice.stateful or choice.table):
        found.append(
            Objection(
                reason="with the state cleared, no result would contain what came from the other partitions",
                way_out="leave out --input-topics, or use --state keep",
                forced=True,
            )
        )
    if choice.bounded and choice.live and choice.output != "keep":
        found.append(
            Objection(
                reason="consumers can move to the new result only where the old one ended; a replay that stops earlier never gets there",
                way_out="leave out --until"
                + (", or use --output keep --force" if choice.table and not keeps else ", or use --output keep"),
            )
        )
    return found


def in_one_piece(choice: Choice) -> bool:
    """Whether consumers of the old result continue in the new one where both have read the same input. Then nothing of
    the replay reaches them. Otherwise they read the new result from its start, because the old one was deleted or the
    two never meet.
    """
    return choice.output == "new" and choice.move == "back"


def means_the_same(choice: Choice, target: Target) -> bool:
    """Whether a reset of the whole input means the same wherever its release stops: what the release reads until then
    comes after the position that it goes to.

    If it is just there now, that still holds for a fixed position. But then it isn't known yet how consumers continue.
    """
    if choice.state == "keep" or choice.scoped or target.kind == "shift":
        return False
    fixed = target.kind not in ("latest", "current")
    return choice.move == "back" or (choice.move == "stay" and fixed and choice.output != "new")


# -- how the new generation runs ---------------------------------------------------------------------------------------


def goal(started: GenerationStarted | None) -> Mark | None:
    """The boundary at which a generation must end a batch before it runs freely; None: it runs freely at once.

    The goal is the end of the generation before, with its predecessor, because alignment needs it; without the
    predecessor if this generation starts after that. Or the goal is where a bounded replay stops. Or it is where the
    replay ends, so that no record comes from both old and new input. Such a record could be a table's row, or a pair of
    a join with only its older half processed.
    """
    if started is None or started.op is None:
        return None
    at = started.seed.boundary.position if started.seed else started.start
    if started.meet and started.ended is not None:
        boundary, result = started.ended.boundary, started.ended.result
        # a partition that the old end doesn't have is read past it: the old result has none of its records
        boundary = boundary.model_copy(update={"position": _with_all(boundary.position, at)})
        if boundary.previous is not None:
            boundary = boundary.model_copy(update={"previous": _with_all(boundary.previous, at)})
        if not boundary.settled and boundary.previous is not None and not boundary.previous.dominates(at):
            boundary = boundary.model_copy(update={"previous": None})
        return Mark(op=started.op, boundary=boundary, result=result)
    if started.until is not None:
        return _alone(started.op, started.until)
    replayed = reduce(_furthest, (span.end for span in started.processed), at)
    if started.ended is None or replayed.same(at):
        return None
    return _alone(started.op, replayed)


def may_pass(started: GenerationStarted | None) -> bool:
    """Whether nobody waits at a generation's goal. It is then the end of a replay, and an alignment may go past it."""
    return started is not None and not started.meet and started.until is None


def _alone(op: str, position: SourcePosition) -> Mark:
    return Mark(op=op, boundary=Boundary(batch_id=0, position=position), result=ResultPosition(topics={}))


def _furthest(position: SourcePosition, other: SourcePosition) -> SourcePosition:
    """`position`, with each of its partitions moved forward to `other` where that is further."""
    return SourcePosition(
        sources={
            source: {p: max(offset, other.sources.get(source, {}).get(p, 0)) for p, offset in offsets.items()}
            for source, offsets in position.sources.items()
        }
    )


def _with_all(position: SourcePosition, other: SourcePosition) -> SourcePosition:
    """`position`, with the partitions that only `other` has."""
    return SourcePosition(
        sources={source: {**offsets, **position.sources.get(source, {})} for source, offsets in other.sources.items()}
    )


def batch_records(started: GenerationStarted | None, last: Progress | None) -> int | None:
    """The limit of records per batch that a reset has set; None: there is none, or its replay is over."""
    if started is None or started.max_records_per_batch is None:
        return None
    at = last.boundary.position if last is not None and last.generation == started.generation else started.start
    over = [at.dominates(span.end) for span in started.processed]
    return None if over and all(over) else started.max_records_per_batch


def free_until(mark: Mark) -> SourcePosition:
    """How far a generation may run with batches of its own choice before it must align with `mark`."""
    boundary = mark.boundary
    return boundary.position if boundary.settled or boundary.previous is None else boundary.previous


def next_stop(wanted: Mark, steps: Sequence[Step], at: SourcePosition, max_records: int) -> SourcePosition:
    """Where the next aligning batch ends: on the way, batches are portions. The last batch before `wanted` isn't
    divided, because its predecessor is part of the mark that must be met.
    """
    to = steps[0].to
    last = len(steps) == 1 and wanted.boundary.previous is not None and not wanted.boundary.settled
    return to if last else toward(at, to, max_records)


def toward(at: SourcePosition, to: SourcePosition, max_records: int) -> SourcePosition:
    """Where a batch of at most `max_records` ends on the way from `at` to `to`; partitions take shares of the rest."""
    left = to.records_since(at)
    if left <= max_records:
        return to
    # rounding leaves some records over: the first partitions that aren't at `to` take them
    spare = max_records
    sources: dict[str, dict[int, int]] = {}
    ways = [(s, p, at.sources.get(s, {}).get(p, 0), end) for s, ends in to.sources.items() for p, end in ends.items()]
    for source, partition, here, end in ways:
        share = max(0, end - here) * max_records // left
        spare -= share
        sources.setdefault(source, {})[partition] = here + share
    for source, partition, _, end in ways:
        more = max(0, min(spare, end - sources[source][partition]))
        sources[source][partition] += more
        spare -= more
    return SourcePosition(sources=sources)


class Replays:
    """Which records of a result are a replay: their event had been processed before this generation started.

    If a batch reads only processed input, all that it writes is a replay. If it reads none, nothing is, even if a row
    of a join or of a state contains an older event. In between, a record that names its source record is judged by
    that; any other record, such as a table's row, comes from many and is not a replay.
    """

    def __init__(self, processed: Iterable[Span], inputs: Mapping[str, str]) -> None:
        """`processed`: may have holes, where ranges were left out. `inputs`: source name -> topic. If two sources read
        one topic, a record is a replay if both had read it.
        """
        self._ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for span in processed:
            for source, ends in span.end.sources.items():
                for partition, end in ends.items():
                    start = span.start.sources.get(source, {}).get(partition, 0)
                    if start < end:
                        self._ranges.setdefault((source, partition), []).append((start, end))
        self._ranges = {key: _merged(ranges) for key, ranges in self._ranges.items()}
        self._sources: dict[str, list[str]] = {}
        for name, topic in inputs.items():
            self._sources.setdefault(topic, []).append(name)

    def batch(self, begin: SourcePosition, end: SourcePosition) -> Literal["all", "some", "none"]:
        """How much of the input of a batch from `begin` to `end` had been processed.

        A batch without input, which closes windows, is a replay as long as more replayed input is to come.
        """
        if not self._ranges:
            return "none"
        read = {
            (source, partition): (begin.sources.get(source, {}).get(partition, 0), last)
            for source, ends in end.sources.items()
            for partition, last in ends.items()
        }
        parts = {key: ends for key, ends in read.items() if ends[0] < ends[1]}
        if not parts:
            past = all(last == 0 or self._covers(*key, last - 1, last) for key, (_, last) in read.items())
            return (
                "all" if past and any(self._covers(*key, last, last + 1) for key, (_, last) in read.items()) else "none"
            )
        if all(self._covers(*key, *ends) for key, ends in parts.items()):
            return "all"
        touched = any(
            a < last and first < b for key, (first, last) in parts.items() for a, b in self._ranges.get(key, ())
        )
        return "some" if touched else "none"

    def record(self, source: str) -> bool:
        """Whether the record `topic:partition:offset` had been processed."""
        if not self._ranges:
            return False
        topic, partition, offset = source.rsplit(":", 2)
        return all(
            self._covers(name, int(partition), int(offset), int(offset) + 1) for name in self._sources.get(topic, ())
        )

    def by_topic(self) -> dict[str, list[dict[int, list[tuple[int, int]]]]]:
        """What had been processed: topic -> for each source that reads it, partition -> ranges of offsets, each with its end
        exclusive.
        """
        found: dict[str, list[dict[int, list[tuple[int, int]]]]] = {}
        for topic, sources in self._sources.items():
            found[topic] = [
                {partition: ranges for (name, partition), ranges in self._ranges.items() if name == source}
                for source in sources
            ]
        return found

    def _covers(self, source: str, partition: int, first: int, end: int) -> bool:
        return any(a <= first and end <= b for a, b in self._ranges.get((source, partition), ()))


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in order; adjacent ones are joined."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def spans_of(release: Release, last: Progress | None, of: Container[int] | None = None) -> list[Span]:
    """The input read by a release's ended generations and, up to `last`, by the current one. `of`: only these."""
    found = []
    ends = {**release.ended, **({last.generation: last} if last is not None else {})}
    for number, end in ends.items():
        started = release.generations.get(number)
        if started is None or (of is not None and number not in of):
            continue
        left_out = started.left_out
        if left_out is not None and end.boundary.position.dominates(left_out.end):
            found += [
                Span(start=started.start, end=left_out.start),
                Span(start=left_out.end, end=end.boundary.position),
            ]
        else:
            found.append(Span(start=started.start, end=end.boundary.position))
    return found
