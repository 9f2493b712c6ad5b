"""What a follower may do next: the decisions, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.errors import Refused, SwitchyardError
from pipelines.follow.moves import (
    Commits,
    Committed,
    Deliver,
    Enter,
    FollowerPosition,
    Member,
    Wait,
    beginning,
    bound,
    group_number,
    narrowed,
    next_move,
    oldest,
    results_of,
    resume,
    start,
    topic_of,
)
from pipelines.model.entries import DeltaSegment, Opened, Switch, SwitchAborted
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Mark, Progress
from pipelines.model.registry import Operation, RegistryState, fold

OLD, NEW = "s.v1.g1", "s.v2.g1"
TOUCHED = DeltaSegment(topic="d", start=7, end=9)
BASE = DeltaSegment(topic="d", start=0, end=6)


def result(topic: str, *offsets: int) -> ResultPosition:
    return ResultPosition(topics={topic: dict(enumerate(offsets))})


FIRST = Switch(
    number=1, old=None, old_generation=None, old_end=None, new="s.v1", new_generation=1, new_start=result(OLD, 0, 0)
)
SECOND = Switch(
    number=2,
    old="s.v1",
    old_generation=1,
    old_end=result(OLD, 10, 20),
    new="s.v2",
    new_generation=1,
    new_start=result(NEW, 3, 4),
    delta=(TOUCHED, BASE),
)
CHAIN = (FIRST, SECOND)


def old(*offsets: int) -> FollowerPosition:
    return FollowerPosition(alias="s", number=1, topic=OLD, offsets=dict(enumerate(offsets)))


def delta(segment: int, offset: int) -> FollowerPosition:
    return FollowerPosition(alias="s", number=2, segment=segment, topic="d", offsets={0: offset})


def new(*offsets: int) -> FollowerPosition:
    return FollowerPosition(alias="s", number=2, topic=NEW, offsets=dict(enumerate(offsets)))


def progress(at: ResultPosition, barrier: ResultPosition | None = None, **changes: Any) -> Progress:
    boundary = Boundary(batch_id=1, position=SourcePosition(sources={}))
    mark = Mark(op="op", boundary=boundary, result=barrier) if barrier else None
    fields: dict[str, Any] = {
        "release": "s.v1",
        "generation": 1,
        "token": 1,
        "boundary": boundary,
        "at_ms": 0,
    } | changes
    return Progress(**fields, result=at, barrier=mark)


def operations(*, aborted: bool = False) -> dict[str, Operation]:
    entries = [Opened(id="op", name="promote", releases=("s.v1", "s.v2"), alias="s", deadline_ms=1)]
    state = fold(RegistryState(), [*entries, *([SwitchAborted(alias="s", id="op")] if aborted else [])])
    return dict(state.operations)


def test_it_delivers_up_to_the_newest_progress() -> None:
    seen = progress(result(OLD, 5, 6))
    assert next_move(old(5, 2), (FIRST,), seen, {}) == Deliver(OLD, {1: 6})
    assert next_move(old(5, 6), (FIRST,), seen, {}) == Wait("tail")
    assert next_move(old(5, 6), (FIRST,), None, {}) == Wait("tail")


@pytest.mark.parametrize("other", [progress(result(OLD, 5, 6), release="s.v3"), progress(result("s.v1.g2", 5, 6))])
def test_progress_of_another_release_or_result_says_nothing(other: Progress) -> None:
    assert bound(old(0, 0), (FIRST,), other, {}) == {}


def test_a_later_generation_may_go_on_writing_the_same_result() -> None:
    assert bound(old(0, 0), (FIRST,), progress(result(OLD, 5, 6), generation=2), {}) == {0: 5, 1: 6}


def test_a_result_that_is_not_written_any_more_is_delivered_to_its_end() -> None:
    newer, end = progress(result("s.v1.g2", 1, 1), barrier=result("s.v1.g2", 1, 1)), result(OLD, 5, 6)
    assert next_move(old(5, 2), (FIRST,), newer, operations(), ended=end) == Deliver(OLD, {1: 6})
    # and then only a switch moves it, whatever the newer generation is asked
    assert next_move(old(5, 6), (FIRST,), newer, operations(), ended=end) == Wait("tail")


def test_it_waits_at_an_unresolved_barrier_and_passes_a_resolved_one() -> None:
    seen = progress(result(OLD, 8, 8), barrier=result(OLD, 5, 6))
    assert next_move(old(5, 2), (FIRST,), seen, operations()) == Deliver(OLD, {1: 6})
    assert next_move(old(5, 6), (FIRST,), seen, operations()) == Wait("barrier", "op")
    assert next_move(old(5, 6), (FIRST,), seen, operations(aborted=True)) == Deliver(OLD, {0: 8, 1: 8})


def test_at_a_barrier_that_the_registry_as_read_does_not_know_it_delivers_nothing() -> None:
    seen = progress(result(OLD, 8, 8), barrier=result(OLD, 5, 6))
    assert next_move(old(5, 2), (FIRST,), seen, {}) == Wait("registry", "op")


def test_through_a_switch() -> None:
    late = progress(result(OLD, 99, 99))
    steps = [
        (old(0, 20), Deliver(OLD, {0: 10})),
        (old(10, 20), Enter(delta(0, 7))),
        (delta(0, 8), Deliver("d", {0: 9})),
        (delta(0, 9), Enter(delta(1, 0))),
        (delta(1, 6), Enter(new(3, 4))),
        (new(3, 4), Wait("tail")),
    ]
    for position, move in steps:
        assert next_move(position, CHAIN, late, {}) == move


def test_past_a_cut_is_refused_unless_the_operator_allowed_it() -> None:
    with pytest.raises(Refused, match="past the cut of switch 2"):
        next_move(old(11, 20), CHAIN, None, {})
    allowed = SECOND.model_copy(update={"allowed": "duplicates", "delta": ()})
    assert next_move(old(11, 20), (FIRST, allowed), None, {}) == Enter(new(3, 4))


def test_a_position_outside_the_chain() -> None:
    with pytest.raises(SwitchyardError, match="not in its chain"):
        next_move(delta(2, 0), CHAIN, None, {})


# -- members


ZERO, ONE = Member(0, 2), Member(1, 2)


def mine(position: FollowerPosition, member: Member) -> FollowerPosition:
    return position.model_copy(update={"offsets": {p: o for p, o in position.offsets.items() if member.owns(p)}})


def committed(*of: tuple[str, int, int, int, int | None]) -> Commits:
    """(topic, partition, offset, number, segment) each."""
    found: dict[str, dict[int, Committed]] = {}
    for topic, partition, offset, number, segment in of:
        found.setdefault(topic, {})[partition] = Committed(offset, number, segment)
    return found


def test_none_leaves_the_old_result_before_all_have_committed_it() -> None:
    there = mine(old(10, 20), ZERO)
    for other in (committed(), committed((OLD, 1, 19, 1, None))):
        half: Commits = {OLD: {0: Committed(10, 1, None), **other.get(OLD, {})}}
        assert next_move(there, CHAIN, None, {}, member=ZERO, commits=half) == Wait("members")
    commits = committed((OLD, 0, 10, 1, None), (OLD, 1, 20, 1, None))
    assert next_move(there, CHAIN, None, {}, member=ZERO, commits=commits) == Enter(delta(0, 7))


def test_its_own_offsets_must_be_committed_too() -> None:
    commits = committed((OLD, 0, 9, 1, None), (OLD, 1, 20, 1, None))
    assert next_move(mine(old(10, 20), ZERO), CHAIN, None, {}, member=ZERO, commits=commits) == Wait("members")


def test_the_others_wait_for_the_delta() -> None:
    there = mine(old(10, 20), ONE)
    both = ((OLD, 0, 10, 1, None), (OLD, 1, 20, 1, None))
    for done in (("d", 0, 9, 2, 0), ("d", 0, 5, 2, 1)):
        assert next_move(there, CHAIN, None, {}, member=ONE, commits=committed(*both, done)) == Wait("members")
    for last in (("d", 0, 6, 2, 1), (NEW, 0, 3, 2, None)):
        move = next_move(there, CHAIN, None, {}, member=ONE, commits=committed(*both, last))
        assert move == Enter(mine(new(3, 4), ONE))


def test_one_who_is_far_ahead_has_left() -> None:
    # back on the old topic by a later switch: its offset there says nothing of the cut
    commits = committed((OLD, 0, 3, 5, None), (OLD, 1, 20, 1, None))
    assert next_move(mine(old(10, 20), ONE), CHAIN, None, {}, member=ONE, commits=commits) == Enter(
        mine(new(3, 4), ONE)
    )


# -- where it begins


def test_it_resumes_at_the_newest_that_it_committed() -> None:
    left = (OLD, 0, 10, 1, None), (OLD, 1, 20, 1, None)
    assert resume("s", committed(*left), CHAIN) == old(10, 20)
    assert resume("s", committed(*left, ("d", 0, 8, 2, 0)), CHAIN) == delta(0, 8)
    assert resume("s", committed(*left, ("d", 0, 4, 2, 1)), CHAIN) == delta(1, 4)
    passed = (("d", 0, 6, 2, 1), (NEW, 0, 5, 2, None), (NEW, 1, 4, 2, None))
    assert resume("s", committed(*left, *passed), CHAIN) == new(5, 4)


def test_one_member_takes_over_from_two_who_were_a_phase_apart() -> None:
    commits = committed((OLD, 0, 10, 1, None), (OLD, 1, 20, 1, None), (NEW, 0, 8, 2, None))
    assert resume("s", commits, CHAIN) == new(8, 4)


def test_commits_of_something_else_say_nothing() -> None:
    assert resume("s", committed(("other", 0, 4, 1, None), (OLD, 0, 4, 9, None)), CHAIN) is None


def test_a_new_follower_begins_at_the_newest_release_or_at_the_first() -> None:
    assert start("s", {}, CHAIN, lambda _: 2) == new(0, 0)
    assert start("s", {}, CHAIN, lambda _: 2, first=FIRST) == old(0, 0)


def test_the_beginning_is_where_the_whole_way_is_still_there() -> None:
    assert oldest(CHAIN, {OLD, NEW, "d"}) == FIRST
    # its release is retired; or what took a consumer on from it is gone
    assert oldest(CHAIN, {NEW, "d"}) == oldest(CHAIN, {OLD, NEW}) == CHAIN[-1]


def test_a_new_member_begins_with_member_0() -> None:
    assert start("s", {}, CHAIN, lambda _: 2, ONE) is None
    assert start("s", committed((OLD, 0, 4, 1, None)), CHAIN, lambda _: 2, ONE) == beginning("s", FIRST, 2, ONE)


def test_what_a_group_no_longer_needs() -> None:
    left = (OLD, 0, 10, 1, None), (OLD, 1, 20, 1, None)
    assert group_number({}, CHAIN) is None
    assert group_number(committed(*left, ("d", 0, 8, 2, 0)), CHAIN) == 1
    assert group_number(committed(*left, (NEW, 0, 3, 2, None)), CHAIN) == 1
    assert group_number(committed(*left, (NEW, 0, 3, 2, None), (NEW, 1, 4, 2, None)), CHAIN) == 2


def test_a_position_survives_json() -> None:
    assert FollowerPosition.model_validate_json(delta(1, 4).model_dump_json()) == delta(1, 4)


# -- an app with several results

EVENTS = "s.v1.g1.events", "s.v2.g1.events"
BOTH = tuple(
    switch.model_copy(
        update={
            "old_end": switch.old_end and ResultPosition(topics={OLD + ".table": {0: 10, 1: 20}, EVENTS[0]: {0: 5}}),
            "new_start": ResultPosition(
                topics={f"{switch.new}.g1.table": {0: 3, 1: 4}, f"{switch.new}.g1.events": {0: 2}}
            ),
        }
    )
    for switch in CHAIN
)


def test_a_follower_sees_the_chain_of_its_own_result() -> None:
    assert results_of(BOTH) == ["table", "events"] and results_of(CHAIN) == [""]
    chain = narrowed(BOTH, "events")
    assert [topic_of(switch) for switch in chain] == list(EVENTS)
    assert narrowed(CHAIN, "") == CHAIN
    at_end = FollowerPosition(alias="s", number=1, topic=EVENTS[0], offsets={0: 5}, result="events")
    move = next_move(at_end, chain, None, {})
    assert isinstance(move, Enter) and move.position.result == "events" and move.position.segment == 0
    there = resume("s", {"d": {0: Committed(6, 2, 1, "events")}}, chain)
    assert there is not None and (there.topic, there.segment, there.result) == ("d", 1, "events")
    assert beginning("s", chain[1], 1).result == "events"


def test_what_the_follower_of_one_result_has_read_of_a_delta_says_nothing_of_another() -> None:
    commits: Commits = {
        "s.v1.g1.table": {0: Committed(10, 1, None), 1: Committed(20, 1, None)},
        "d": {0: Committed(8, 2, 0, "events")},
    }
    here = resume("s", commits, narrowed(BOTH, "table"))
    assert here is not None and (here.number, here.segment) == (1, None)


def test_a_group_is_where_the_slowest_of_its_followers_is() -> None:
    commits: Commits = {
        "s.v2.g1.table": {0: Committed(4, 2, None), 1: Committed(4, 2, None)},
        EVENTS[0]: {0: Committed(1, 1, None)},
    }
    assert group_number(commits, BOTH) == 1
    del commits[EVENTS[0]]  # type: ignore[attr-defined]
    assert group_number(commits, BOTH) == 2


def test_a_position_of_the_only_result_is_written_as_before() -> None:
    assert "result" not in new(1, 2).model_dump_json()
    there = FollowerPosition(alias="s", number=1, topic=EVENTS[0], offsets={0: 1}, result="events")
    assert FollowerPosition.model_validate_json(there.model_dump_json()) == there
