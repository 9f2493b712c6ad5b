"""The switch protocol's decisions, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.errors import BadUsage, Refused
from pipelines.model.entries import AlignOrdered, Closed, MarkOrdered, Opened, Switch, SwitchAborted
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Flagging, Mark, Progress
from pipelines.model.registry import RegistryState, fold
from pipelines.model.switch import (
    AwaitMark,
    Free,
    Met,
    PastTheMark,
    Pause,
    Run,
    Step,
    abortion,
    candidate_move,
    expired,
    flags,
    foreseen,
    holds_ahead,
    promotion,
    steps_to,
    touch_ups,
)

NOTHING = ResultPosition(topics={})


def at(*offsets: int, **more: dict[int, int]) -> SourcePosition:
    """Offsets of partitions 0, 1, ... of source `a`, and other sources."""
    return SourcePosition(sources={"a": dict(enumerate(offsets)), **more})


def boundary(position: SourcePosition, previous: SourcePosition | None = None, settled: bool = False) -> Boundary:
    return Boundary(batch_id=7, position=position, previous=previous, settled=settled)


def mark(position: SourcePosition, previous: SourcePosition | None = None, settled: bool = False) -> Mark:
    return Mark(op="op", boundary=boundary(position, previous, settled), result=NOTHING)


def order(past: SourcePosition, op: str = "op") -> MarkOrdered:
    return MarkOrdered(id=op, release="s.v1", past=past, switch=2, alias="s", deadline_ms=50)


def progress(where: Boundary, **marks: Any) -> Progress:
    return Progress(release="s.v2", generation=1, token=1, boundary=where, result=NOTHING, at_ms=0, **marks)


# -- flags


def test_a_boundary_is_flagged_when_its_predecessor_is_at_or_past() -> None:
    assert flags(order(at(5, 5)), at(5, 5), boundary(at(9, 9)), None)
    assert flags(order(at(5, 5)), at(6, 5), boundary(at(9, 9)), None)


def test_not_when_only_the_boundary_itself_is_past() -> None:
    assert not flags(order(at(5, 5)), at(4, 9), boundary(at(9, 9)), None)
    assert not flags(order(at(5, 5)), None, boundary(at(9, 9)), None)


def test_idle_a_settled_boundary_is_flagged_at_its_own_position() -> None:
    assert flags(order(at(5, 5)), at(1, 1), boundary(at(5, 5), settled=True), None)
    assert not flags(order(at(5, 5)), at(1, 1), boundary(at(5, 4), settled=True), None)


def test_never_twice_for_one_operation() -> None:
    assert not flags(order(at(5)), at(6), boundary(at(9)), mark(at(8)))
    assert flags(order(at(5), op="next"), at(6), boundary(at(9)), mark(at(8)))


# -- steps_to


def test_two_steps_to_a_mark() -> None:
    assert steps_to(mark(at(9), at(7)), boundary(at(5))) == [Step(at(7)), Step(at(9))]


def test_one_step_from_the_predecessor_and_none_once_it_is_met() -> None:
    assert steps_to(mark(at(9), at(7)), boundary(at(7), at(2))) == [Step(at(9))]
    assert steps_to(mark(at(9), at(7)), boundary(at(9), at(7))) == []


def test_a_batch_without_data_is_reproduced() -> None:
    assert steps_to(mark(at(9), at(9)), boundary(at(5))) == [Step(at(9)), Step(at(9), no_data=True)]
    assert steps_to(mark(at(9), at(9)), boundary(at(9), at(5))) == [Step(at(9), no_data=True)]
    assert steps_to(mark(at(9), at(9)), boundary(at(9), at(9))) == []


def test_a_settled_mark_needs_a_settled_release() -> None:
    settled = mark(at(9), at(7), settled=True)
    assert steps_to(settled, boundary(at(8))) == [Step(at(9)), Step(at(9), no_data=True)]
    assert steps_to(settled, boundary(at(9), at(8))) == [Step(at(9), no_data=True)]
    assert steps_to(settled, boundary(at(9), at(8), settled=True)) == []


def test_past_the_mark_is_an_error_that_names_the_partition() -> None:
    with pytest.raises(PastTheMark, match=r"a\[1\] at 8, mark 7"):
        steps_to(mark(at(9, 7), at(9, 7)), boundary(at(2, 8)))
    with pytest.raises(PastTheMark, match=r"a\[0\] at 8, mark 7"):
        steps_to(mark(at(9), at(7)), boundary(at(8), at(2)))
    with pytest.raises(PastTheMark):
        steps_to(mark(at(9), at(7)), boundary(at(9), at(8)))


def test_what_only_one_side_has_stays_where_it_is() -> None:
    own = boundary(SourcePosition(sources={"a": {0: 5, 3: 40}, "mine": {0: 1}}))
    theirs = mark(at(9, 2, theirs={0: 3}), at(7, 1, theirs={0: 3}))
    assert steps_to(theirs, own) == [
        Step(SourcePosition(sources={"a": {0: 7, 1: 1, 3: 40}, "mine": {0: 1}})),
        Step(SourcePosition(sources={"a": {0: 9, 1: 2, 3: 40}, "mine": {0: 1}})),
    ]


# -- candidate_move


def test_a_candidate_pauses_waits_runs_and_goes_on() -> None:
    ordered = AlignOrdered(id="op", release="s.v2", other="s.v1", switch=2)
    here = boundary(at(5))
    paused = Mark(op="op", boundary=here, result=NOTHING)
    barrier = mark(at(9), at(7))
    assert candidate_move(None, progress(here), None) == Free()
    assert candidate_move(ordered, progress(here), None) == Pause("op")
    assert candidate_move(ordered, progress(here, paused=paused), None) == AwaitMark("op")
    other = progress(boundary(at(20)), barrier=mark(at(9)).model_copy(update={"op": "before"}))
    assert candidate_move(ordered, progress(here, paused=paused), other) == AwaitMark("op")
    flagged = progress(boundary(at(20)), barrier=barrier)
    assert candidate_move(ordered, progress(here, paused=paused), flagged) == Run(barrier, (Step(at(7)), Step(at(9))))
    there = progress(boundary(at(9), at(7)), paused=paused)
    assert candidate_move(ordered, there, flagged) == Met(barrier)
    assert candidate_move(ordered, there.model_copy(update={"aligned": barrier}), flagged) == Free()


def test_a_candidate_runs_ahead_on_the_others_word_and_meets_the_mark_alone() -> None:
    ordered = AlignOrdered(id="op", release="s.v2", other="s.v1", switch=2)
    here, barrier = boundary(at(5)), mark(at(9), at(7))
    word = Flagging(op="op", boundary=barrier.boundary)
    other = progress(boundary(at(7)))
    # what it reads itself is at its end first
    assert candidate_move(ordered, progress(here), other, word) == Pause("op")
    paused = progress(here, paused=Mark(op="op", boundary=here, result=NOTHING))
    assert candidate_move(ordered, paused, other, word) == Run(word, (Step(at(7)), Step(at(9))))
    there = paused.model_copy(update={"boundary": boundary(at(9), at(7))})
    assert candidate_move(ordered, there, other, word) == AwaitMark("op")
    assert candidate_move(ordered, there, progress(barrier.boundary, barrier=barrier), word) == Met(barrier)
    of_another = word.model_copy(update={"op": "before"})
    assert candidate_move(ordered, paused, other, of_another) == AwaitMark("op")
    # an old word that is heard again
    farther = paused.model_copy(update={"boundary": boundary(at(12), at(9))})
    assert candidate_move(ordered, farther, other, word) == AwaitMark("op")
    # the order came too late for the boundary that was foreseen: it is the predecessor of the one that is flagged
    later = mark(at(12), at(9))
    assert candidate_move(ordered, there, progress(later.boundary, barrier=later), word) == Run(later, (Step(at(12)),))


def test_what_is_foreseen_is_what_will_be_flagged() -> None:
    assert foreseen(order(at(5)), boundary(at(9), at(7)), None) == Flagging(op="op", boundary=boundary(at(9), at(7)))
    assert foreseen(order(at(8)), boundary(at(9), at(7)), None) is None
    assert foreseen(order(at(5)), boundary(at(9), at(7)), mark(at(6))) is None


def test_evidence_is_aligned_to_the_evidence_mark() -> None:
    ordered = AlignOrdered(id="op", release="s.v2", other="s.v1", switch=None)
    here = boundary(at(5))
    mine = progress(here, paused=Mark(op="op", boundary=here, result=NOTHING))
    assert candidate_move(ordered, mine, progress(here, barrier=mark(at(5)))) == AwaitMark("op")
    assert candidate_move(ordered, mine, progress(here, evidence=mark(at(5), settled=True))) == Run(
        mark(at(5), settled=True), (Step(at(5), no_data=True),)
    )


# -- deltas


def test_a_group_stands_where_the_slower_of_two_sources_on_a_topic_does() -> None:
    position = SourcePosition(sources={"left": {0: 5, 1: 9}, "right": {0: 7, 1: 3, 2: 1}, "other": {0: 2}})
    topics = {"left": "t", "right": "t", "other": "u", "new": "v"}
    assert position.by_topic(topics) == {"t": {0: 5, 1: 3, 2: 1}, "u": {0: 2}}


def test_touch_ups_have_every_touched_key() -> None:
    assert touch_ups([b"a", b"b"], {b"a": b"1"}, {}) == {b"a": b"1", b"b": None}


def test_touch_ups_leave_out_what_was_written_ahead_and_is_so_still() -> None:
    ahead = {b"same": b"1", b"changed": b"1", b"gone": b"1", b"back": None, b"deleted": None}
    touched = [*ahead, b"fresh"]
    new = {b"same": b"1", b"changed": b"2", b"back": b"3", b"fresh": b"4"}
    assert touch_ups(touched, new, ahead) == {b"changed": b"2", b"gone": None, b"back": b"3", b"fresh": b"4"}


def test_what_was_read_ahead_holds_up_to_the_cut() -> None:
    def at(*offsets: int) -> ResultPosition:
        return ResultPosition(topics={"r": dict(enumerate(offsets))})

    assert holds_ahead(at(3, 4), at(3, 4))
    assert holds_ahead(at(3, 4), at(5, 4))
    assert not holds_ahead(at(3, 4), at(5, 3))


# -- resolution


def switch(number: int, old: str | None, new: str) -> Switch:
    return Switch(
        number=number,
        old=old,
        old_generation=1 if old else None,
        old_end=NOTHING if old else None,
        new=new,
        new_generation=1,
        new_start=NOTHING,
    )


def opened(op: str = "op", deadline_ms: int = 100) -> Opened:
    return Opened(id=op, name="promote", releases=("s.v1", "s.v2"), alias="s", deadline_ms=deadline_ms)


def under_way() -> RegistryState:
    """Release 1 is live, and `op` has ordered a mark with deadline 50; its own is 100."""
    state = fold(RegistryState(), [opened("first")])
    state = fold(state, promotion(state, "s", "first", switch(1, None, "s.v1")))
    return fold(state, [Closed(id="first", outcome="done"), opened(), order(at(1))])


def test_promoted_excludes_aborted() -> None:
    state = under_way()
    state = fold(state, promotion(state, "s", "op", switch(2, "s.v1", "s.v2")))
    assert [s.new for s in state.chains["s"]] == ["s.v1", "s.v2"]
    assert abortion(state, "op") == []
    with pytest.raises(Refused, match=r"promoted s\.v2 as switch 2"):
        promotion(state, "s", "op", switch(3, "s.v2", "s.v1"))


def test_aborted_excludes_promoted() -> None:
    state = fold(under_way(), abortion(under_way(), "op"))
    assert state.operations["op"].aborted
    with pytest.raises(Refused, match="was aborted"):
        promotion(state, "s", "op", switch(2, "s.v1", "s.v2"))
    assert abortion(state, "op") == []


def test_closed_excludes_both() -> None:
    state = fold(under_way(), [Closed(id="op", outcome="failed")])
    with pytest.raises(Refused, match="was closed: failed"):
        promotion(state, "s", "op", switch(2, "s.v1", "s.v2"))
    assert abortion(state, "op") == []


@pytest.mark.parametrize("planned", [switch(3, "s.v1", "s.v2"), switch(2, "s.v0", "s.v2"), switch(1, None, "s.v2")])
def test_an_alias_that_changed_since_the_plan_is_not_switched(planned: Switch) -> None:
    with pytest.raises(Refused, match=r"changed since the plan: it is at switch 1, s\.v1"):
        promotion(under_way(), "s", "op", planned)


def test_an_unknown_operation() -> None:
    with pytest.raises(BadUsage, match="no operation nope"):
        abortion(under_way(), "nope")


def test_what_is_overdue_is_aborted_once_and_closed_at_its_own_deadline() -> None:
    state = under_way()
    assert expired(state, 50) == []
    entries = expired(state, 51)
    assert [type(e) for e in entries] == [SwitchAborted]
    state = fold(state, entries)
    assert expired(state, 60) == []
    entries = expired(state, 101)
    assert [type(e) for e in entries] == [Closed]
    assert expired(fold(state, entries), 1000) == []


def test_a_promoted_operation_that_nobody_closed_is_closed_and_not_aborted() -> None:
    state = under_way()
    state = fold(state, promotion(state, "s", "op", switch(2, "s.v1", "s.v2")))
    assert [type(e) for e in expired(state, 1000)] == [Closed]
