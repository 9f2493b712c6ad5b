"""The switch protocol, as pure decisions: what boundary is flagged, how the other release meets it, who resolves it.

Drivers, operations and followers decide by these functions alone; `tests/switch` searches the whole protocol with them.

1. an operation orders the candidate to align; the candidate begins no further batch, says where it will pause at the
   latest, and pauses at the next boundary;
2. the operation orders a mark past that position; the live driver flags the first boundary that `flags` allows, and says
   where that will be while its batch is under way;
3. the candidate runs the steps of `steps_to`, one batch each, meanwhile if it can, and says where it met the mark;
4. `promotion` or `abortion`, whichever comes first in the registry, resolves the operation. Nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipelines.errors import BadUsage, Refused
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Flagging, Mark, Progress
from pipelines.model.registry import (
    AlignOrdered,
    Closed,
    Entry,
    MarkOrdered,
    Operation,
    Promoted,
    RegistryState,
    Switch,
    SwitchAborted,
)

K = TypeVar("K")
V = TypeVar("V")


class PastTheMark(Refused):
    """The release has read past a mark that it was to meet: this alignment has failed, the next one may not."""


# -- the driver that flags ---------------------------------------------------------------------------------------------


def flags(order: MarkOrdered, previous: SourcePosition | None, boundary: Boundary, already: Mark | None) -> bool:
    """Whether `boundary`, with `previous` the position of the batch before it, is the one to flag for `order`.

    The predecessor must be at or past `order.past`, since the other release has to reproduce both. Idle: a settled
    boundary depends on its own position only. `already`: the last mark that this driver flagged; never twice for one
    operation.
    """
    if already is not None and already.op == order.id:
        return False
    if previous is not None and previous.dominates(order.past):
        return True
    return boundary.settled and boundary.position.dominates(order.past)


def foreseen(order: MarkOrdered, boundary: Boundary, already: Mark | None) -> Flagging | None:
    """The word of a driver whose batch under way is planned to end at `boundary`; None: that will not be flagged.

    A plan outlives its driver, so that the batch ends there, whenever it does. Not flagged after all (the order came too
    late for it), it is the predecessor of the one that is.
    """
    return Flagging(op=order.id, boundary=boundary) if flags(order, boundary.previous, boundary, already) else None


# -- the driver that aligns --------------------------------------------------------------------------------------------


def pauses_by(at: SourcePosition, planned: SourcePosition | None) -> SourcePosition:
    """The farthest that a release stands when it pauses, which begins no further batch: the end of the one it has planned."""
    return at if planned is None else planned


@dataclass(frozen=True, slots=True)
class Step:
    """One batch to run: it ends exactly at `to`. `no_data`: it stands there already; the batch is empty."""

    to: SourcePosition
    no_data: bool = False


def steps_to(mark: Mark | Flagging, at: Boundary) -> list[Step]:
    """The batches by which a release at boundary `at` meets `mark`; empty when it has met it.

    Two, as results depend on the batch before: to the mark's predecessor, then to the mark. A settled mark needs its
    position and then empty batches until the release is settled, too. Ask again after each batch: a crash loses
    nothing.
    Raises PastTheMark if `at` has gone past on a partition, or stands there by another way.
    """
    goal = merged(at.position, mark.boundary.position)
    if not goal.dominates(at.position):
        raise _past(mark, at, mark.boundary.position)
    if mark.boundary.settled:
        if at.position != goal:
            return [Step(goal), Step(goal, no_data=True)]
        return [] if at.settled else [Step(goal, no_data=True)]
    if mark.boundary.previous is None:
        if at.position == goal:
            return []
        return [Step(goal)]
    before = merged(at.position, mark.boundary.previous)
    if at.position == goal and at.previous is not None and merged(at.previous, mark.boundary.previous) == at.previous:
        return []
    if at.position == before:
        return [Step(goal, no_data=before == goal)]
    if not before.dominates(at.position):
        raise _past(mark, at, mark.boundary.previous)
    return [Step(before), Step(goal, no_data=before == goal)]


def merged(own: SourcePosition, other: SourcePosition) -> SourcePosition:
    """`other`'s offsets for the sources that both have; what only `own` has stays where it is."""
    return SourcePosition(sources={s: {**offsets, **other.sources.get(s, {})} for s, offsets in own.sources.items()})


def _past(mark: Mark | Flagging, at: Boundary, goal: SourcePosition) -> PastTheMark:
    past = [
        f"{source}[{partition}] at {offset}, mark {goal.sources[source][partition]}"
        for source, offsets in at.position.sources.items()
        for partition, offset in offsets.items()
        if offset > goal.sources.get(source, {}).get(partition, offset)
    ]
    return PastTheMark(
        f"batch {at.batch_id} is past the mark of operation {mark.op}: {', '.join(past) or 'met by other batches'}",
        fix="abort that operation and start it again: the next mark lies ahead",
    )


@dataclass(frozen=True, slots=True)
class Free:
    """No order stands, or it is done: run on."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Finish a batch that has begun, then write progress with `paused` for operation `op` and stop there."""

    op: str


@dataclass(frozen=True, slots=True)
class AwaitMark:
    """Paused: wait until the other release has flagged its boundary for `op`, or the order no longer stands."""

    op: str


@dataclass(frozen=True, slots=True)
class Run:
    """Run the first of `steps`, then ask again."""

    mark: Mark | Flagging
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Met:
    """The mark is met: write progress with `aligned`, then run on."""

    mark: Mark


CandidateMove = Free | Pause | AwaitMark | Run | Met


def candidate_move(
    order: AlignOrdered | None, mine: Progress | None, theirs: Progress | None, word: Flagging | None = None
) -> CandidateMove:
    """What the driver that stands under `order` does next, from its own and the other release's newest progress.

    `word`: the other's, on which this one runs ahead to where it will have to; met is the mark alone. One operation aligns
    once: `order.id` must be new for every alignment. Raises PastTheMark as `steps_to` does.
    """
    if order is None or mine is None or (mine.aligned is not None and mine.aligned.op == order.id):
        return Free()
    if mine.paused is None or mine.paused.op != order.id:
        return Pause(order.id)
    mark = None if theirs is None else theirs.evidence if order.switch is None else theirs.barrier
    if mark is None or mark.op != order.id:
        ahead = _steps_ahead(word, mine.boundary) if word is not None and word.op == order.id else []
        return Run(word, tuple(ahead)) if word is not None and ahead else AwaitMark(order.id)
    steps = steps_to(mark, mine.boundary)
    return Run(mark, tuple(steps)) if steps else Met(mark)


def _steps_ahead(word: Flagging, at: Boundary) -> list[Step]:
    try:
        return steps_to(word, at)
    except PastTheMark:
        # an old word, heard again after a crash: the mark lies ahead
        return []


# -- the operation -----------------------------------------------------------------------------------------------------


def changes(old: Mapping[bytes, bytes], new: Mapping[bytes, bytes]) -> dict[bytes, bytes | None]:
    """What turns a fold of `old` into one of `new`: values that differ, None for keys that `new` doesn't have."""
    return {key: new.get(key) for key in {**old, **new} if old.get(key) != new.get(key)}


def touch_ups(touched: Iterable[K], new: Mapping[K, V], ahead: Mapping[K, V]) -> dict[K, V | None]:
    """The delta's first segment: every key touched since the evidence, in either result, as `new` has it at the cut.

    Also those that are equal now: followers leave a touched key out of the evidence's older segment. `ahead`: what a
    segment behind this one tells, written while the drivers met (None: gone); a key that it has as it is now is left out.
    """
    return {key: new.get(key) for key in touched if key not in ahead or ahead[key] != new.get(key)}


def holds_ahead(read: ResultPosition, cut: ResultPosition) -> bool:
    """Whether what was read of a result in advance, up to `read`, may be part of a delta as of `cut`.

    Not so where an operation was left and is resumed, and the result has gone on behind the cut.
    """
    return cut.dominates(read)


def promotion(state: RegistryState, alias: str, op: str, switch: Switch) -> list[Entry]:
    """The entry that resolves operation `op` by `switch`. To be decided on the registry's newest state, in one step.

    Raises Refused if the operation is resolved already, or the alias has changed since `switch` was planned.
    """
    operation = _known(state, op)
    if operation.resolved:
        raise Refused(
            f"operation {op} can't promote {switch.new} any more: it {_ended(operation)}",
            fix="look at it with `switchyard log`, then start a new one",
        )
    chain = state.chains.get(alias, ())
    newest = chain[-1] if chain else None
    expected = (newest.new, newest.new_generation) if newest else (None, None)
    number = newest.number + 1 if newest else 1
    if (switch.old, switch.old_generation) != expected or switch.number != number:
        raise Refused(
            f"alias {alias} has changed since the plan: it is at switch {number - 1}, {expected[0] or 'nothing'}",
            fix="make a new plan",
        )
    return [Promoted(alias=alias, switch=switch, op=op)]


def of_generation(history: Iterable[Progress], generation: int) -> list[Progress]:
    """The records of one generation: another's results are in another topic."""
    return [progress for progress in history if progress.generation == generation]


def choose_start(history: Sequence[Progress], end: SourcePosition, allowed: str | None) -> Progress:
    """Where consumers go on in a release of boundaries `history`, oldest first, after another that ended at input `end`.

    A boundary at exactly `end` is exact. Otherwise `allowed` says how: "duplicates" takes the last boundary before
    `end`, "gap" the first one past it, "either" the former, else the newest (of a table, which a delta makes whole). Raises Refused, saying what would be double or missing, if neither is allowed
    or there is no such boundary.
    """
    exact = [p for p in history if p.boundary.position.same(end)]
    if exact:
        return exact[-1]
    before = [p for p in history if end.dominates(p.boundary.position)]
    past = [p for p in history if p.boundary.position.dominates(end)]
    if allowed == "either" and history:
        return before[-1] if before else history[-1]
    if allowed == "duplicates" and before:
        return before[-1]
    if allowed == "gap" and past:
        return past[0]
    double = f"{end.records_since(before[-1].boundary.position):,} input records twice" if before else "not possible"
    missing = f"{past[0].boundary.position.records_since(end):,} input records missing" if past else "not possible yet"
    raise Refused(
        f"the releases share no boundary at the end of the old one; duplicates: {double}; gap: {missing}",
        fix="choose with --allow duplicates or --allow gap",
    )


def abortion(state: RegistryState, op: str, reason: str | None = None) -> list[Entry]:
    """The entry that ends operation `op` without a switch; none if it is resolved already, by whatever."""
    operation = _known(state, op)
    if operation.resolved:
        return []
    alias = operation.opened.alias or (operation.mark.alias if operation.mark else None) or ""
    return [SwitchAborted(alias=alias, id=op, op=op, reason=reason)]


def emptying(state: RegistryState, op: str) -> str | None:
    """The release whose result operation `op` empties, and has begun to; None: it does not, or is over."""
    operation = state.operations.get(op)
    if operation is None or operation.closed is not None:
        return None
    found = (r.name for r in state.releases.values() if r.under is not None and r.under.op == op and r.under.cleared)
    return next(found, None)


def expired(state: RegistryState, now_ms: int) -> list[Entry]:
    """What the supervisor, or any command, writes about operations whose deadline has passed.

    One that has begun to empty a result stays open until it is resumed: nothing else makes that whole. One of which the
    registry says something that this version can't read is left to a version that can. A mark's deadline ends the switch,
    so that no follower waits longer; the operation's own deadline closes it.
    """
    entries: list[Entry] = []
    for operation in state.operations.values():
        names = (*operation.opened.releases, *([operation.opened.alias] if operation.opened.alias else []))
        if operation.closed is not None or any(state.not_understood(name) is not None for name in names):
            continue
        over = operation.opened.deadline_ms < now_ms and emptying(state, operation.id) is None
        mark = operation.mark
        if mark is not None and mark.switch is not None and (over or mark.deadline_ms < now_ms):
            entries += abortion(state, operation.id, "deadline passed")
        if over:
            entries.append(Closed(id=operation.id, outcome="expired", op=operation.id, detail="deadline passed"))
    return entries


def _known(state: RegistryState, op: str) -> Operation:
    found = state.operations.get(op)
    if found is None:
        raise BadUsage(f"there is no operation {op}", fix="see `switchyard operations`")
    return found


def _ended(operation: Operation) -> str:
    if operation.promoted is not None:
        return f"promoted {operation.promoted.switch.new} as switch {operation.promoted.switch.number}"
    if operation.aborted:
        return "was aborted"
    return f"was closed: {operation.closed.outcome if operation.closed else 'open'}"
