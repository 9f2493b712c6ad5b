"""What a release can't read and the live one has: which ranges, who has accepted them, and which step says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from orchestration.operations.applying.applier import Applier
from orchestration.operations.context import Context
from orchestration.operations.looking.history import ACCEPT, MissingHistory, history_of
from orchestration.operations.planning.diff import plan_diff
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.run import plan_start
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import from_journal, to_journal
from orchestration.operations.plans.stages.generations import BeginGeneration
from orchestration.operations.plans.stages.releases import AcceptHistory
from orchestration.operations.procedures.check import check
from pipelines.errors import Refused
from pipelines.model.entries import HistoryAccepted, StateSet, decode, encode
from pipelines.model.missing import Gap, InputNow, Reader, may_be_missing, missing, told, without
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Progress
from tests.operations.builders import Kafka, Log, context_of, generation, staged, switched

DELETED = Gap(topic="trades", partition=0, start=0, end=1000, why="deleted")


def reader(begins: int, reached: int | None = None, since_ms: int = 0, id: str | None = None) -> Reader:
    return Reader(
        begins={"trades": {0: begins}},
        reached={} if reached is None else {"trades": {0: reached}},
        since_ms=since_ms,
        ids={"trades": id} if id else {},
    )


def kafka(first: int, **also: Any) -> Mapping[str, InputNow]:
    return {"trades": InputNow(first={0: first}, **also)}


def gap(start: int, end: int, why: Any = "deleted") -> Gap:
    return Gap(topic="trades", partition=0, start=start, end=end, why=why)


@pytest.mark.parametrize(
    ("theirs", "ours", "now", "expected"),
    [
        # all is there
        (reader(0, 5000), reader(0), kafka(0), ()),
        # retention has passed before it was staged
        (reader(0, 5000), reader(1000), kafka(1000), (DELETED,)),
        # what the live one never read either
        (reader(800, 5000), reader(1000), kafka(1000), (gap(800, 1000),)),
        (reader(1000, 5000), reader(1000), kafka(1000), ()),
        (reader(0, 400), reader(1000), kafka(1000), (gap(0, 400),)),
        # what it has read before it was deleted, it has
        (reader(0, 5000), reader(0, 3000), kafka(2000), ()),
        # what it was to read next is gone, whoever has read it
        (reader(0, 5000), reader(0, 1500), kafka(2000), (gap(1500, 2000),)),
        (None, reader(0), kafka(7), (gap(0, 7),)),
        (reader(0, 5000), reader(1000), kafka(1200), (gap(1000, 1200), DELETED)),
        # a reset has moved it
        (reader(0, 5000), reader(60), kafka(0), (gap(0, 60, "not-read"),)),
        # any of what came before it began may be gone, but for the one that began first
        (reader(0, 5000), reader(0, since_ms=5), kafka(0, compacted=True), (gap(0, 5000, "compacted"),)),
        (reader(0, 5000, since_ms=5), reader(0, since_ms=5), kafka(0, compacted=True), (gap(0, 5000, "compacted"),)),
        (reader(0, 5000, since_ms=5), reader(0), kafka(0, compacted=True), ()),
        (reader(0, 0), reader(0, since_ms=5), kafka(0, compacted=True), ()),
        (None, reader(0), kafka(0, compacted=True), ()),
        # the same name is another topic
        (reader(0, 50, id="a"), reader(0), kafka(0, id="b"), (gap(0, 50, "replaced"),)),
        (reader(0, 50, id="a"), reader(0, id="a"), kafka(0, id="b"), ()),
        (reader(0, 50), reader(0), kafka(0, id="b"), ()),
    ],
)  # fmt: skip
def test_what_is_missing(
    theirs: Reader | None, ours: Reader, now: Mapping[str, InputNow], expected: tuple[Gap, ...]
) -> None:
    assert missing(theirs, ours, now) == expected
    assert may_be_missing(theirs, ours, now) or not expected


def test_an_input_of_one_of_them_is_no_history() -> None:
    other = Reader(begins={"quotes": {0: 0}}, reached={}, since_ms=0, ids={})
    assert missing(reader(0, 5000), other, {**kafka(1000), "quotes": InputNow(first={0: 0})}) == ()


def test_nobody_asks_how_far_they_have_read_where_all_is_there() -> None:
    assert not may_be_missing(reader(0, 5000), reader(0, 3000), kafka(0))
    assert not may_be_missing(None, reader(7), kafka(7))


def test_an_acceptance_covers_what_was_missing_then() -> None:
    assert without([DELETED], [DELETED]) == ()
    assert without([gap(0, 1500)], [DELETED]) == (gap(1000, 1500),)
    assert without([gap(0, 1500)], [gap(100, 200, "not-read"), gap(400, 500)]) == (
        gap(0, 100), gap(200, 400), gap(500, 1500),
    )  # fmt: skip
    # what is read of a compacted topic later is read by both
    assert without([gap(0, 9, "compacted")], [gap(0, 5, "compacted")]) == ()
    # one reason is not another
    assert without([gap(0, 9, "replaced")], [gap(0, 9)]) == (gap(0, 9, "replaced"),)
    assert without([gap(0, 9, "compacted")], [gap(0, 9)]) == (gap(0, 9, "compacted"),)


def test_gaps_are_told_by_reason() -> None:
    said = told([gap(1000, 1200), DELETED, gap(1300, 1301), gap(0, 9, "compacted")])
    assert said.startswith(
        "deleted by retention: trades[0] 0 to 1,199, trades[0] 1,300 to 1,300 (1,201 offsets); in a compacted topic"
    )


def test_its_entries_survive_the_log_and_fold() -> None:
    entry = HistoryAccepted(release="a.v2", missing=(DELETED,))
    assert decode(encode(entry)) == entry
    log = Log(*staged("a.v2"), entry, HistoryAccepted(release="a.v9", missing=(DELETED,)))
    assert log.state().releases["a.v2"].accepted == (DELETED,)
    stage = AcceptHistory(release="a.v2", missing=(DELETED,))
    assert from_journal(to_journal(stage)) == stage


# -- the steps ----------------------------------------------------------------------------------------------------------


def progress(release: str, at: int) -> Progress:
    return Progress(
        release=release,
        generation=1,
        token=1,
        boundary=Boundary(batch_id=3, position=SourcePosition(sources={"trades": {0: at}})),
        result=ResultPosition(topics={}),
        at_ms=0,
    )


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Log:
    """`a.v1` is live and has read 5,000 records; of these Kafka has no longer the 1,000 that `a.v2` begins after."""
    at = {"a.v1": 5000, "a.v2": 5000}
    monkeypatch.setattr(
        "orchestration.operations.reading.newest_progress", lambda _, name, **__: progress(name, at[name])
    )
    monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_: {})
    monkeypatch.setattr("orchestration.operations.planning.run.moved_by_hand", lambda *_: None)
    log = Log(*staged("a.v1", "a.v2"), *switched(1, None, "a.v1"))
    starts = {"a.v1": 0, "a.v2": 1000}
    for name, offset in starts.items():
        log.entries.append(generation(name, 1, start=SourcePosition(sources={"trades": {0: offset}})))
    # as they were begun the first time
    log.entries = [e for e in log.entries if getattr(e, "start", None) != SourcePosition(sources={"trades": {0: 5}})]
    return log


def world(log: Log) -> Any:
    return context_of(log, Kafka(inputs=kafka(1000), first={"trades": {0: 1000}}))


def test_every_command_names_the_range_and_the_fix(cut: Log) -> None:
    steps: tuple[Callable[[Context, str], Plan], ...] = (plan_start, plan_diff, plan_promote)
    for step in steps:
        with pytest.raises(MissingHistory) as error:
            step(world(cut), "a.v2")
        assert "a.v2 can't read all the input that a.v1 has read" in error.value.what
        assert "trades[0] 0 to 999 (1,000 offsets)" in error.value.what and ACCEPT in error.value.fix
        assert error.value.gaps == (DELETED,)


def test_a_check_names_the_range_and_records_no_verdict(cut: Log) -> None:
    known = list(cut.entries)
    with pytest.raises(
        MissingHistory, match=r"a\.v2 can't read all the input that a\.v1 has read.*trades\[0\] 0 to 999"
    ) as error:
        check(world(cut), "a.v2")
    assert error.value.gaps == (DELETED,) and ACCEPT in error.value.fix
    assert cut.entries == known
    # once that is accepted, it asks for the diff that comes first
    with pytest.raises(Refused, match=r"not compared with a\.v1 yet"):
        check(world(cut), "a.v2", accept_missing=True)
    assert cut.entries[len(known) :] == [HistoryAccepted(release="a.v2", missing=(DELETED,))]


def test_what_is_accepted_is_recorded_once_and_holds_for_later_steps(cut: Log) -> None:
    plan = plan_start(world(cut), "a.v2", accept_missing=True)
    assert plan.stages[0] == AcceptHistory(release="a.v2", missing=(DELETED,))
    assert "accepted by this command" in plan.facts["missing history"]
    again = Plan(id="start-1", operation=Kind.START, releases=("a.v2",), stages=plan.stages[:1])
    for _ in range(2):
        Applier(world(cut), again).apply(plan.stages[0])
    assert [e for e in cut.entries if isinstance(e, HistoryAccepted)] == [
        HistoryAccepted(release="a.v2", missing=(DELETED,), op="start-1")
    ]
    later = plan_start(world(cut), "a.v2")
    assert "accepted before" in later.facts["missing history"]
    assert not any(isinstance(stage, AcceptHistory) for stage in later.stages)
    state = cut.state()
    more = context_of(cut, Kafka(inputs=kafka(6000)))
    assert history_of(more, state, state.releases["a.v2"]).left == (gap(5000, 6000),)


def test_the_live_release_is_held_against_none(cut: Log) -> None:
    state = cut.state()
    assert history_of(world(cut), state, state.releases["a.v1"]).gaps == ()
    # and the standby against the live one as anyone
    assert history_of(world(cut), state, state.releases["a.v1"], state.releases["a.v2"]).gaps == ()


def test_without_its_progress_the_group_tells_what_the_live_release_has_read(
    cut: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestration.operations.reading.newest_progress", lambda *_, **__: None)
    monkeypatch.setattr("orchestration.operations.looking.progress.ends_of", lambda *_: {})
    state = cut.state()
    for committed, gaps in (({}, ()), ({"a.v1": {"trades": {0: (5000, "1:3")}}}, (DELETED,))):
        there = Kafka(inputs=kafka(1000), first={"trades": {0: 1000}}, committed=committed)
        assert history_of(context_of(cut, there), state, state.releases["a.v2"]).gaps == gaps


def test_a_candidate_that_begins_anew_asks_for_all_that_it_then_lacks(cut: Log) -> None:
    # it had read what is deleted now, and fails by something else
    cut.entries += [HistoryAccepted(release="a.v2", missing=(DELETED,)), StateSet(release="a.v2", state="failed")]
    later = context_of(cut, Kafka(inputs=kafka(2000), first={"trades": {0: 2000}}))
    with pytest.raises(MissingHistory, match=r"trades\[0\] 1,000 to 1,999 \(1,000 offsets\)"):
        plan_start(later, "a.v2")
    plan = plan_start(later, "a.v2", accept_missing=True)
    [accepted] = [s for s in plan.stages if isinstance(s, AcceptHistory)]
    [begun] = [s for s in plan.stages if isinstance(s, BeginGeneration)]
    assert begun.start == SourcePosition(sources={"trades": {0: 2000}})
    cut.entries += [
        HistoryAccepted(release="a.v2", missing=accepted.missing),
        generation("a.v2", 2, start=begun.start),
    ]
    state = cut.state()
    found = history_of(later, state, state.releases["a.v2"])
    assert found.gaps == (gap(0, 2000),) and found.left == ()
