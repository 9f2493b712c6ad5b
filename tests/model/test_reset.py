"""Which options go together, where a position leads, how a generation meets the end of another. No broker, no Spark."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import Refused
from pipelines.model.entries import GenerationStarted
from pipelines.model.positions import ResultPosition, SourcePosition, Span
from pipelines.model.progress import Boundary, Progress
from pipelines.model.reset import (
    Choice,
    Objection,
    Replays,
    Seen,
    Target,
    batch_records,
    free_until,
    goal,
    move,
    next_stop,
    objections,
    record_of,
    resolve,
    spans_of,
    toward,
)
from pipelines.model.switch import steps_to
from tests.operations.builders import release


def at(*offsets: int, source: str = "trades") -> SourcePosition:
    return SourcePosition(sources={source: dict(enumerate(offsets))})


def seen(**changes: int | None) -> dict[tuple[str, int], Seen]:
    facts = {"first": 10, "end": 100, "position": 50, "committed": 60, "at_time": 70, **changes}
    return {("trades", 0): Seen(topic="trades", **facts)}  # type: ignore[arg-type]


def resolved(target: Target, **changes: int | None) -> int:
    return resolve(target, seen(**changes), [("trades", 0)]).sources["trades"][0]


# -- where it moves to


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (Target(kind="earliest", text="e"), 10),
        (Target(kind="latest", text="l"), 100),
        (Target(kind="current", text="c"), 60),
        (Target(kind="datetime", text="d"), 70),
        (Target(kind="shift", text="s", number=-40), 10),
        (Target(kind="shift", text="s", number=50), 100),
        (Target(kind="offset", text="o", number=10), 10),
        (Target(kind="file", text="f", offsets={"trades": {0: 99}}), 99),
    ],
)
def test_each_position_leads_where_its_name_says(target: Target, offset: int) -> None:
    assert resolved(target) == offset


def test_a_time_leads_to_the_beginning_where_nothing_ever_was() -> None:
    assert resolved(Target(kind="datetime", text="d"), first=0, end=0, position=0, at_time=None) == 0


@pytest.mark.parametrize(
    ("target", "changes", "said"),
    [
        (Target(kind="shift", text="s", number=-41), {}, r"trades\[0\] offset 9 is before the first kept record, 10"),
        (Target(kind="shift", text="s", number=-51), {}, "offset -1 is negative"),
        (Target(kind="shift", text="s", number=51), {}, "offset 101 is past the end, 100"),
        (Target(kind="offset", text="o", number=9), {}, "before the first kept record"),
        (Target(kind="offset", text="o", number=101), {}, "past the end"),
        (Target(kind="current", text="c"), {"committed": None}, "no offset in the consumer group"),
        (Target(kind="current", text="c"), {"committed": 5}, "before the first kept record"),
        (Target(kind="datetime", text="d"), {"at_time": None}, "no record at or after that time"),
        # the first kept record comes after it; deleted records may have come before
        (Target(kind="datetime", text="d"), {"at_time": 10}, "retention deleted the earlier records"),
        # its end is neither before nor after that time
        (
            Target(kind="datetime", text="d"),
            {"first": 100, "at_time": None},
            "retention deleted all records before offset 100",
        ),
        (Target(kind="file", text="f", offsets={"trades": {1: 9}}), {}, "is not in the file"),
    ],
)
def test_what_is_out_of_range_is_refused_and_never_clamped(target: Target, changes: dict[str, int], said: str) -> None:
    with pytest.raises(Refused, match=said) as caught:
        resolved(target, **changes)
    assert caught.value.fix


def test_all_that_is_wrong_is_said_at_once_and_the_rest_stays() -> None:
    two = {**seen(), ("trades", 1): Seen(topic="trades", first=0, end=5, position=3), ("words", 0): seen()["trades", 0]}
    target = Target(kind="offset", text="o", number=200)
    with pytest.raises(Refused, match=r"trades\[0\].*; trades\[1\]"):
        resolve(target, two, two)
    assert resolve(Target(kind="latest", text="l"), two, [("trades", 1)]) == SourcePosition(
        sources={"trades": {0: 50, 1: 5}, "words": {0: 50}}
    )


def test_an_end_that_is_not_possible_is_said_of_until() -> None:
    end = Target(kind="offset", text="101", number=101)
    with pytest.raises(
        Refused, match=r"^--until 101 is not possible: trades\[0\] offset 101 is past the end"
    ) as refused:
        resolve(end, seen(), [("trades", 0)], until=True)
    assert refused.value.fix == "leave out --until, or give an end that every partition has, like --until latest"


def test_of_two_sources_on_one_topic_only_that_which_has_yet_to_read_a_record_leaves_it_out() -> None:
    both = {
        (name, p): Seen(topic="trades", first=0, end=100, position=position if p == 0 else 9)
        for name, position in (("left", 60), ("right", 50))
        for p in (0, 1)
    }
    skip = {offset: Target(kind="skip", text="--skip", offsets={"trades": {0: offset}}) for offset in (40, 55, 70, 100)}
    record = record_of(skip[55], both, "a.v1")
    assert record.start.sources == {"left": {0: 60, 1: 9}, "right": {0: 55, 1: 9}}
    assert record.end.sources == {"left": {0: 60, 1: 9}, "right": {0: 56, 1: 9}}
    record = record_of(skip[70], both, "a.v1")
    assert {s: o[0] for s, o in record.start.sources.items()} == {"left": 70, "right": 70}
    assert {s: o[0] for s, o in record.end.sources.items()} == {"left": 71, "right": 71}
    for offset, said in ((40, "was already read"), (100, "is past the end, 100")):
        with pytest.raises(Refused, match=said) as refused:
            record_of(skip[offset], both, "a.v1")
        assert refused.value.fix.startswith("`switchyard bisect a.v1`")


def test_which_way_a_position_goes() -> None:
    assert move(at(5, 5), at(5, 5)) == "stay"
    assert move(at(5, 5), at(5, 0)) == "back"
    assert move(at(5, 5), at(5, 6)) == "forward"
    assert move(at(5, 5), at(6, 4)) == "mixed"


# -- which options go together: every cell, written by hand

MOVES = ("back", "forward", "stay", "mixed")
OUTPUTS = ("new", "truncate", "tombstone", "keep")
REFUSED = {
    # a cleared result would lack what the kept state doesn't touch again
    *((("keep", o, m, t, s)) for o in ("new", "truncate", "tombstone") for m in MOVES for t in (True, False) for s in (True, False)),
    # there is nothing to do
    *((("keep", "keep", "stay", t, s)) for t in (True, False) for s in (True, False)),
    # counted twice
    *((("keep", "keep", m, t, True)) for m in ("back", "mixed") for t in (True, False)),
    # nothing is cleared
    *((("clear", "tombstone", m, False, s)) for m in MOVES for s in (True, False)),
    # stale rows
    *((("clear", "keep", m, True, s)) for m in MOVES for s in (True, False)),
}  # fmt: skip


@pytest.mark.parametrize("state", ["clear", "keep"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_each_cell_is_refused_or_not_as_the_table_says(state: str, output: str) -> None:
    for way, table, stateful in product(MOVES, (True, False), (True, False)):
        choice = Choice(state=state, output=output, move=way, table=table, stateful=stateful)  # type: ignore[arg-type]
        found = objections(choice)
        assert bool(found) == ((state, output, way, table, stateful) in REFUSED), choice
        assert all(o.reason and o.way_out for o in found)


def test_some_partitions_alone_can_not_go_back_with_a_cleared_state() -> None:
    for table, stateful in product((True, False), (True, False)):
        choice = Choice(state="clear", output="new", move="back", table=table, stateful=stateful, scoped=True)
        assert bool(objections(choice)) == (table or stateful)
    assert not objections(Choice(state="keep", output="keep", move="forward", table=True, stateful=True, scoped=True))


def test_a_replay_with_an_end_has_no_place_to_move_consumers_at() -> None:
    choice = Choice(state="clear", output="new", move="back", table=False, stateful=False, bounded=True)
    assert not objections(choice)
    assert objections(
        Choice(state="clear", output="new", move="back", table=False, stateful=False, bounded=True, live=True)
    )


def test_force_goes_over_doubt_never_over_nonsense() -> None:
    forced = {
        (c.state, c.output): all(o.forced for o in objections(c))
        for c in (
            Choice(state="keep", output="keep", move="back", table=True, stateful=True),
            Choice(state="clear", output="keep", move="back", table=True, stateful=True),
            Choice(state="clear", output="tombstone", move="back", table=False, stateful=True),
            Choice(state="keep", output="new", move="forward", table=True, stateful=True),
        )
    }
    assert forced == {
        ("keep", "keep"): True,
        ("clear", "keep"): True,
        ("clear", "tombstone"): False,
        ("keep", "new"): False,
    }


# -- how a generation runs


def ended(position: SourcePosition, previous: SourcePosition | None, *, settled: bool = False) -> Progress:
    boundary = Boundary(batch_id=7, position=position, previous=previous, settled=settled)
    return Progress(release="a.v1", generation=1, token=1, boundary=boundary, result=ResultPosition(topics={}), at_ms=0)


def generation_2(start: SourcePosition, end: Progress | None, **changes: object) -> GenerationStarted:
    fields = {"release": "a.v1", "generation": 2, "start": start, "ended": end, "op": "reset-1", **changes}
    return GenerationStarted(**fields)  # type: ignore[arg-type]


def test_a_generation_meets_the_end_of_the_one_before_with_its_predecessor() -> None:
    found = goal(generation_2(at(0, 0), ended(at(9, 9), at(7, 8)), meet=True))
    assert found is not None and found.op == "reset-1"
    assert (found.boundary.position, found.boundary.previous) == (at(9, 9), at(7, 8))
    assert free_until(found) == at(7, 8)


def test_a_partition_that_the_old_end_does_not_know_is_read_past_it() -> None:
    found = goal(generation_2(at(0, 0, 0), ended(at(9, 9), at(7, 8)), meet=True))
    assert found is not None
    assert (found.boundary.position, found.boundary.previous) == (at(9, 9, 0), at(7, 8, 0))


def test_past_the_predecessor_the_end_alone_is_met() -> None:
    found = goal(generation_2(at(8, 0), ended(at(9, 9), at(7, 8)), meet=True))
    assert found is not None and found.boundary.previous is None
    assert free_until(found) == at(9, 9)
    # a generation that continues another starts where its seed says
    again = generation_2(at(0, 0), ended(at(9, 9), at(7, 8)), meet=True, seed=ended(at(8, 8), None))
    found = goal(again)
    assert found is not None and found.boundary.previous is None


def test_a_settled_end_needs_its_position_only() -> None:
    found = goal(generation_2(at(8, 0), ended(at(9, 9), at(9, 9), settled=True), meet=True))
    assert found is not None and found.boundary.settled and free_until(found) == at(9, 9)


def test_a_bounded_replay_ends_where_it_was_told_to_and_others_run_on() -> None:
    found = goal(generation_2(at(0), None, until=at(5)))
    assert found is not None and found.boundary.position == at(5) and free_until(found) == at(5)
    assert goal(generation_2(at(0), ended(at(9), None))) is None  # nothing had been processed
    assert goal(None) is None


def test_a_replay_ends_with_a_batch_so_that_no_result_is_both() -> None:
    # another release had read further in one partition; the records of the third one are new
    processed = (Span(start=at(0, 0), end=at(5, 9)), Span(start=at(0, 0), end=at(7, 8)))
    again = generation_2(at(2, 0, 3), ended(at(5, 9), at(4, 8)), processed=processed)
    found = goal(again)
    assert found is not None and (found.op, found.boundary.position) == ("reset-1", at(7, 9, 3))
    assert free_until(found) == at(7, 9, 3)
    # a release's first generation has no consumer yet; the records ahead are new
    assert goal(again.model_copy(update={"ended": None})) is None
    assert goal(generation_2(at(9, 9), ended(at(5, 9), None), processed=processed)) is None


def test_a_throttle_holds_until_the_replay_is_over() -> None:
    throttled = generation_2(
        at(0, 0), ended(at(9, 9), None), processed=(Span(start=at(0, 0), end=at(9, 9)),), max_records_per_batch=5
    )
    assert batch_records(throttled, None) == 5
    assert batch_records(throttled, ended(at(9, 9), None)) == 5, "of the generation before"
    mine = ended(at(9, 8), None).model_copy(update={"generation": 2})
    assert batch_records(throttled, mine) == 5
    assert batch_records(throttled, mine.model_copy(update={"boundary": ended(at(9, 9), None).boundary})) is None
    assert batch_records(generation_2(at(0, 0), None), None) is None
    # none of it had been processed: so it is no replay, but throttled all the same
    assert batch_records(generation_2(at(0, 0), None, max_records_per_batch=5), None) == 5


positions = st.lists(st.integers(0, 1000), min_size=2, max_size=2)


@pytest.mark.slow
@given(begin=positions, more=positions, most=st.integers(1, 500))
def test_a_way_in_portions_is_never_too_large_and_comes_to_its_end(
    begin: list[int], more: list[int], most: int
) -> None:
    here, end = at(*begin), at(*(b + m for b, m in zip(begin, more, strict=True)))
    for _ in range(2 * sum(more) + 2):
        if here == end:
            break
        there = toward(here, end, most)
        assert there.dominates(here) and end.dominates(there)
        assert 0 < there.records_since(here) <= most
        here = there
    assert here == end


def test_the_last_batch_before_a_boundary_is_whole_others_are_portions() -> None:
    wanted = goal(generation_2(at(0, 0), ended(at(90, 90), at(70, 80)), meet=True))
    assert wanted is not None
    here = Boundary(batch_id=3, position=at(60, 60))
    assert next_stop(wanted, steps_to(wanted, here), here.position, 10) == at(64, 66)
    before = Boundary(batch_id=4, position=at(70, 80), previous=at(69, 80))
    assert next_stop(wanted, steps_to(wanted, before), before.position, 10) == at(90, 90)


# -- what is a replay


def test_a_record_is_judged_by_the_record_that_it_came_from() -> None:
    replays = Replays([Span(start=at(0, 0), end=at(5, 3))], {"trades": "t:opic"})
    assert replays.record("t:opic:0:4") and not replays.record("t:opic:0:5")
    # a partition that nobody had read
    assert not replays.record("t:opic:2:0")


def test_of_two_sources_on_one_topic_the_one_that_had_read_less_decides() -> None:
    both = SourcePosition(sources={"left": {0: 5}, "right": {0: 2}})
    replays = Replays([Span(start=SourcePosition(sources={}), end=both)], {"left": "t", "right": "t"})
    assert replays.record("t:0:1") and not replays.record("t:0:2")


def test_a_batch_is_a_replay_if_all_of_it_is() -> None:
    replays = Replays([Span(start=at(0, 0), end=at(5, 3))], {"trades": "t"})
    none = SourcePosition(sources={})
    assert replays.batch(none, at(5, 3)) == replays.batch(at(2, 0), at(5, 3)) == "all"
    assert replays.batch(none, at(5, 4)) == replays.batch(none, at(5, 3, 1)) == "some"
    # even if an older record contributes to it
    assert replays.batch(at(5, 3), at(6, 3)) == replays.batch(at(6, 3), at(6, 4)) == "none"
    assert Replays([], {"trades": "t"}).batch(none, at(0, 0)) == "none"
    assert not Replays([], {"trades": "t"}).record("t:0:0")


def test_a_batch_without_input_is_a_replay_while_there_is_more_to_come() -> None:
    replays = Replays([Span(start=at(0, 0), end=at(5, 3))], {"trades": "t"})
    for position, expected in ((at(2, 0), "all"), (at(5, 2), "all"), (at(5, 3), "none"), (at(6, 2), "none")):
        assert replays.batch(position, position) == expected


def test_what_was_left_out_is_news_when_it_is_read_after_all() -> None:
    spans = [Span(start=at(0), end=at(4)), Span(start=at(10), end=at(20)), Span(start=at(3), end=at(5))]
    replays = Replays(spans, {"trades": "t"})
    assert [replays.record(f"t:0:{o}") for o in (0, 4, 5, 9, 10, 19, 20)] == [
        True,
        True,
        False,
        False,
        True,
        True,
        False,
    ]
    assert replays.batch(at(0), at(5)) == replays.batch(at(10), at(20)) == "all"
    assert replays.batch(at(0), at(12)) == "some" and replays.batch(at(5), at(10)) == "none"


def test_a_record_that_was_skipped_is_in_no_span() -> None:
    first = generation_2(at(0), None, generation=1)
    skipping = generation_2(at(40), ended(at(40), None), until=at(44), then=at(45))
    known = release("a.v1", generations={1: first, 2: skipping}, under=skipping, ended={1: ended(at(40), None)})
    last = ended(at(60), None).model_copy(update={"generation": 2})
    assert spans_of(known, last) == [
        Span(start=at(0), end=at(40)), Span(start=at(40), end=at(44)), Span(start=at(45), end=at(60)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("output", "table", "way_out"),
    [
        *(
            (output, True, "leave out --until, or use --output keep --force")
            for output in ("new", "truncate", "tombstone")
        ),
        *((output, False, "leave out --until, or use --output keep") for output in ("new", "truncate")),
        ("keep", True, "leave out --until, and use --output new, or --output tombstone to keep the topic"),
    ],
)
def test_whoever_goes_the_way_out_of_a_bounded_replay_is_not_refused_again(
    output: Any, table: bool, way_out: str
) -> None:
    def against(output: Any, *, bounded: bool, force: bool = False) -> list[Objection]:
        choice = Choice(
            state="clear", output=output, move="back", table=table, stateful=True, bounded=bounded, live=True
        )
        return [o for o in objections(choice) if not (force and o.forced)]

    assert [o.way_out for o in against(output, bounded=True)] == [way_out]
    if output == "keep":
        assert not against("new", bounded=False) and not against("tombstone", bounded=False)
    else:
        assert not against(output, bounded=False)
        assert not against("keep", bounded=True, force="--force" in way_out)
