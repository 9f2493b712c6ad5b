"""The switch protocol, as pure decisions: which boundary is flagged, how the other release meets it, who resolves it.

Drivers, operations and followers decide by these functions alone; `tests/switch` searches the whole protocol with them.

1. An operation orders the candidate to align. The candidate starts no further batch, says where it will pause at the
   latest, and pauses at the next boundary.
2. The operation orders a mark past that position. The live driver flags the first boundary that `flags` allows. It says
   where that will be while the batch is still running.
3. The candidate runs the steps of `steps_to`, one batch each, at the same time if it can. It says where it met the
   mark.
4. `promotion` or `abortion`, whichever comes first in the registry, resolves the operation. Nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipelines.errors import BadUsage, Refused
from pipelines.model.entries import AlignOrdered, Closed, Entry, MarkOrdered, Promoted, Switch, SwitchAborted
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Flagging, Mark, Progress
from pipelines.model.registry import Operation, RegistryState

K = TypeVar("K")
V = TypeVar("V")


class PastTheMark(Refused):
    """The release has read past a mark that it was to meet. This alignment has failed; the next one may succeed."""


# -- the driver that flags ---------------------------------------------------------------------------------------------


def flags(order: MarkOrdered, previous: SourcePosition | None, boundary: Boundary, already: Mark | None) -> bool:
    """Whether `boundary` is the one to flag for `order`. `previous`: the position of the batch before it.

    The predecessor must be at or past `order.past`, since the other release has to reproduce both. When idle: a settled
    boundary depends only on its own position. `already`: the last mark that this driver flagged; it never flags twice
    for one operation.
    """
    if already is not None and already.op == order.id:
        return False
    if previous is not None and previous.dominates(order.past):
        return True
    return boundary.settled and boundary.position.dominates(order.past)


def foreseen(order: MarkOrdered, boundary: Boundary, already: Mark | None) -> Flagging | None:
    """The announcement of a driver whose current batch is planned to end at `boundary`; None: that will not be flagged.

    Another driver would run the same plan, so the batch ends there in any case. If the boundary isn't flagged after all
    because the order came too late, it is the predecessor of the one that is.
    """
    return Flagging(op=order.id, boundary=boundary) if flags(order, boundary.previous, boundary, already) else None


# -- the driver that aligns --------------------------------------------------------------------------------------------


def pauses_by(at: SourcePosition, planned: SourcePosition | None) -> SourcePosition:
    """The latest position at which a pausing release stops: the end of its planned batch, because it starts no other."""
    return at if planned is None else planned


@dataclass(frozen=True, slots=True)
class Step:
    """One batch to run: it ends exactly at `to`. `no_data`: the release is there already; the batch is empty."""

    to: SourcePosition
    no_data: bool = False


def steps_to(mark: Mark | Flagging, at: Boundary) -> list[Step]:
    """The batches by which a release at boundary `at` meets `mark`; empty if it has met it.

    There are two, because results depend on the batch before: one to the mark's predecessor, then one to the mark. A
    settled mark needs its position, then empty batches until the release is settled, too. Call this again after each
    batch: then a crash loses nothing. Raises PastTheMark if `at` is past the mark on a partition, or reached it by
    other batches.
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
    """`other`'s offsets for the sources that both have; sources that only `own` has keep their offsets."""
    return SourcePosition(sources={s: {**offsets, **other.sources.get(s, {})} for s, offsets in own.sources.items()})


def _past(mark: Mark | Flagging, at: Boundary, goal: SourcePosition) -> PastTheMark:
    past = [
        f"{source}[{partition}] at {offset}, mark {goal.sources[source][partition]}"
        for source, offsets in at.position.sources.items()
        for partition, offset in offsets.items()
        if offset > goal.sources.get(source, {}).get(partition, offset)
    ]
    return PastTheMark(
        f"batch {at.batch_id} is past the mark of operation {mark.op}: {', '.join(past) or 'reached by other batches'}",
        fix=f"`switchyard abandon {mark.op}` ends that operation; then run its command again: it sets a later mark",
    )


@dataclass(frozen=True, slots=True)
class Free:
    """No order, or it is done: keep running."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Finish the current batch, then write progress with `paused` for operation `op` and stop there."""

    op: str


@dataclass(frozen=True, slots=True)
class AwaitMark:
    """Paused: wait until the other release has flagged its boundary for `op`, or the order is over."""

    op: str


@dataclass(frozen=True, slots=True)
class Run:
    """Run the first of `steps`, then decide again."""

    mark: Mark | Flagging
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Met:
    """The mark is met: write progress with `aligned`, then keep running."""

    mark: Mark


CandidateMove = Free | Pause | AwaitMark | Run | Met


def candidate_move(
    order: AlignOrdered | None, mine: Progress | None, theirs: Progress | None, word: Flagging | None = None
) -> CandidateMove:
    """What a driver under `order` does next, from its own and the other release's newest progress.

    `word`: the other driver's announcement. It lets this driver run in advance to where it will have to be; only the
    mark itself can be met. Each alignment needs a new `order.id`. Raises PastTheMark as `steps_to` does.
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
        # an old announcement, read again after a crash: the mark will come later
        return []


# -- the operation -----------------------------------------------------------------------------------------------------


def touch_ups(touched: Iterable[K], new: Mapping[K, V], ahead: Mapping[K, V]) -> dict[K, V | None]:
    """The delta's first segment: every key touched since the evidence, in either result, as `new` has it at the cut.

    It includes keys that are equal now: followers skip a touched key in the evidence's older segment. `ahead`: the
    content of a later segment, written while the drivers aligned (None: deleted). A key that has the same value there
    is left out.
    """
    return {key: new.get(key) for key in touched if key not in ahead or ahead[key] != new.get(key)}


def holds_ahead(read: ResultPosition, cut: ResultPosition) -> bool:
    """Whether a result that was read in advance up to `read` may be part of a delta as of `cut`.

    It may not if the operation was resumed and the result has gone past the cut in the meantime.
    """
    return cut.dominates(read)


def promotion(state: RegistryState, alias: str, op: str, switch: Switch) -> list[Entry]:
    """The entry that resolves operation `op` by `switch`. Must be decided on the registry's newest state, in one step.

    Raises Refused if the operation is already resolved, or the alias has changed since `switch` was planned.
    """
    operation = _known(state, op)
    if operation.resolved:
        raise Refused(
            f"operation {op} can't promote {switch.new} any more: it {_ended(operation)}",
            fix=f"`switchyard log {op}` shows what happened; if you still want it, run the command again",
        )
    chain = state.chains.get(alias, ())
    newest = chain[-1] if chain else None
    expected = (newest.new, newest.new_generation) if newest else (None, None)
    number = newest.number + 1 if newest else 1
    if (switch.old, switch.old_generation) != expected or switch.number != number:
        raise Refused(
            f"alias {alias} has changed since the plan: it is at switch {number - 1}, {expected[0] or 'nothing'}",
            fix=f"`switchyard log {alias}` shows who changed it; for a new plan, run the command again",
        )
    return [Promoted(alias=alias, switch=switch, op=op)]


def of_generation(history: Iterable[Progress], generation: int) -> list[Progress]:
    """The records of one generation; other generations may write to other topics."""
    return [progress for progress in history if progress.generation == generation]


def choose_start(history: Sequence[Progress], end: SourcePosition, allowed: str | None) -> Progress:
    """Where consumers continue in a release with boundaries `history`, oldest first, after another that ended at `end`.

    A boundary at exactly the input position `end` is exact. Otherwise `allowed` decides: "duplicates" takes the last
    boundary before `end`, "gap" the first one past it. "either" takes the last one before it, else the newest; that is
    for a table, whose delta corrects the difference. Raises Refused if none of that is allowed or there is no such
    boundary; the error says what would be duplicated or missing.
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
        f"the standby has no boundary where the live release ended, so consumers of a stream can't continue exactly; duplicates: {double}; gap: {missing}",
        fix="run the command again with --allow duplicates or --allow gap",
    )


def abortion(state: RegistryState, op: str, reason: str | None = None) -> list[Entry]:
    """The entry that ends operation `op` without a switch; none if it is already resolved."""
    operation = _known(state, op)
    if operation.resolved:
        return []
    alias = operation.opened.alias or (operation.mark.alias if operation.mark else None) or ""
    return [SwitchAborted(alias=alias, id=op, op=op, reason=reason)]


def emptying(state: RegistryState, op: str) -> str | None:
    """The release whose result operation `op` is emptying; None: it empties none, or is over."""
    operation = state.operations.get(op)
    if operation is None or operation.closed is not None:
        return None
    found = (r.name for r in state.releases.values() if r.under is not None and r.under.op == op and r.under.cleared)
    return next(found, None)


def expired(state: RegistryState, now_ms: int) -> list[Entry]:
    """The entries that the supervisor, or any command, writes about operations past their deadline.

    An operation that has started to empty a result stays open until it is resumed: nothing else can restore the result.
    An operation about which the registry has an entry that this version can't read is left to a version that can. A
    mark's deadline ends the switch, so that no follower waits longer; the operation's own deadline closes it.
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
        raise BadUsage(f"there is no operation {op}", fix="`switchyard operations` lists those under way")
    return found


def _ended(operation: Operation) -> str:
    if operation.promoted is not None:
        return f"promoted {operation.promoted.switch.new} as switch {operation.promoted.switch.number}"
    if operation.aborted:
        return "was aborted"
    return f"was closed: {operation.closed.outcome if operation.closed else 'open'}"
