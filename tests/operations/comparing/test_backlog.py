"""How much came after an evidence, and what a plan makes of it: read while the drivers meet, before, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from orchestration.operations.applying.applier import Applier
from orchestration.operations.applying.work import Work
from orchestration.operations.comparing.backlog import MEANWHILE_RECORDS, READ_RATE, backlog_of
from orchestration.operations.comparing.delta import Delta
from orchestration.operations.comparing.evidence import evidence_for
from orchestration.operations.comparing.upkeep import too_old
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.journal import begin
from orchestration.operations.lifecycle import before_live
from orchestration.operations.planning.diff import _other, plan_diff
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.readiness import not_compared
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.switching import (
    Align,
    AppendSwitch,
    ChooseStart,
    Compare,
    Fence,
    PrepareDelta,
    WriteDelta,
)
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.clock import now_ms
from pipelines.kafka.topics import COMPACTION_LAG_MS
from pipelines.model.entries import (
    AlignOrdered,
    Closed,
    EvidenceRecorded,
    Opened,
    ReadyRecorded,
    StateSet,
    VerdictRecorded,
)
from pipelines.model.positions import ResultPosition
from tests.operations.builders import NOWHERE, Log, context_of, evidence, release, staged, switched

PREPARE = PrepareDelta(evidence="diff-1", old="a.v2", new="a.v1")
ALIGN = Align(release="a.v1", other="a.v2", switch=3, timeout_s=1)


def results(**offsets: int) -> dict[str, Any]:
    """Newest progress by release: `v1=5` is offset 5 of a.v1's only partition."""
    return {
        f"a.{v}": SimpleNamespace(result=ResultPosition(topics={f"a.{v}.g1": {0: offset}}))
        for v, offset in offsets.items()
    }


def compared(*, age_ms: int = 0) -> EvidenceRecorded:
    at = {f"{side}_result": results(**{v: 100})[f"a.{v}"].result for side, v in (("live", "v1"), ("new", "v2"))}
    return evidence("a.v1", "a.v2", at_ms=now_ms() - age_ms, **at)


class World(Context):
    """A context in which both releases run; `newest`: their newest progress."""

    newest: dict[str, Any]

    def progress(self, release: str) -> Any:
        return self.newest.get(release)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    monkeypatch.setattr("orchestration.operations.reading.held_by", lambda *_, **options: "someone")
    beat = SimpleNamespace(at_ms=now_ms(), lag_records=0, batch_records=None)
    monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_: {"a.v1": beat, "a.v2": beat})

    def make(log: Log, **offsets: int) -> World:
        plain = context_of(log)
        made = World(settings=plain.settings, registry=plain.registry, launcher=plain.launcher)
        object.__setattr__(made, "newest", results(**offsets))
        return made

    return make


def promoted(*, age_ms: int = 0) -> Log:
    """v2 went live by switch 2, from v1, after a diff of that age."""
    log = Log(*staged("a.v1", "a.v2"), *switched(1, None, "a.v1"), compared(age_ms=age_ms))
    log.entries += switched(2, "a.v1", "a.v2")
    return log


def kinds(plan: Plan) -> list[str]:
    return [type(stage).__name__ for stage in plan.stages]


MEETING = ["Align", "FlagBoundary", "Meet", "WriteDelta", "AppendSwitch"]


def test_the_records_of_both_releases_since_the_evidence_are_counted(world: Callable[..., World]) -> None:
    assert backlog_of(world(Log(), v1=130, v2=105), compared()).records == 35
    # a result of another generation, or none yet, says nothing of this one
    assert backlog_of(world(Log(), v2=105), compared()).records == 5
    one = ResultPosition(topics={"t": {0: 5, 1: 7}, "other": {0: 9}})
    assert one.records_since(ResultPosition(topics={"t": {0: 4, 1: 8}})) == 1


def test_the_plan_of_a_diff_calls_neither_release_live(world: Callable[..., World]) -> None:
    """After the switch, `diff a.v2` compares the live release with its standby."""
    for name, other in (("a.v2", "a.v1"), ("a.v1", "a.v2")):
        plan = plan_diff(world(promoted(), v1=100, v2=100), name)
        assert plan.facts == {"compares": f"{name} with {other}"}


def test_what_can_be_read_while_the_drivers_meet_is(world: Callable[..., World]) -> None:
    plan = plan_rollback(world(promoted(), v1=100 + MEANWHILE_RECORDS, v2=100), "a")
    assert kinds(plan) == MEETING
    # v1 was live when they were compared, and v2 is now
    assert plan.facts["evidence"] == "diff-1: 3 changed, 2 only in a.v2, 1 only in a.v1, 4 identical"
    assert plan.undo == "switchyard rollback a --execute, while a.v2 still runs as standby"
    assert plan.facts["since the diff"].startswith(
        "300,000 result records to read while the releases meet: about 2 s at 150,000"
    )
    assert len(Applier(context_of(Log()), plan).orders()) == 1


def test_more_is_read_before_they_are_asked_to(world: Callable[..., World]) -> None:
    young = plan_rollback(world(promoted(), v1=100, v2=100), "a")
    plan = plan_rollback(world(promoted(), v1=100 + 100 * READ_RATE, v2=101), "a")
    assert kinds(plan) == ["PrepareDelta", *MEETING]
    assert "15,000,001 result records to read before the releases meet: about 100 s" in plan.facts["since the diff"]
    assert Applier(context_of(Log()), plan).orders() == []
    # reading must not outlive the operation
    assert plan.deadline_s >= young.deadline_s + 100
    assert "under 1 s" in young.facts["since the diff"]


def test_nobody_waits_at_the_barrier_of_a_dead_release(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestration.operations.planning.rollback._warnings_without_meeting", lambda *_: ("fenced",))
    young = plan_rollback(world(promoted(), v1=100, v2=100), "a")
    plan = plan_rollback(world(promoted(), v1=100 + 100 * READ_RATE, v2=100), "a", fence=True)
    assert kinds(plan) == ["Fence", "ChooseStart", "WriteDelta", "AppendSwitch"]
    assert plan.deadline_s >= young.deadline_s + 100


def test_a_promotion_counts_too(world: Callable[..., World]) -> None:
    checked = VerdictRecorded(
        release="a.v2", generation=1, evidence="diff-1", upto=NOWHERE, passed=1, failed=0, errored=0
    )
    log = Log(*staged("a.v1", "a.v2"), *switched(1, None, "a.v1"), StateSet(release="a.v2", state="ready"))
    log.entries += [ReadyRecorded(release="a.v2", generation=1), compared(), checked]
    plan = plan_promote(world(log, v1=100, v2=101 + MEANWHILE_RECORDS), "a")
    assert kinds(plan) == ["PrepareDelta", *MEETING]
    assert plan.facts["evidence"] == "diff-1: 3 changed, 1 only in a.v1, 2 only in a.v2, 4 identical"
    assert (
        "--leaving a.v2" in plan.undo and "after 7 days without either, run `switchyard diff a.v2` first" in plan.undo
    )


def test_evidence_older_than_the_compaction_lag_is_refused(world: Callable[..., World]) -> None:
    found = compared(age_ms=COMPACTION_LAG_MS + 60_000)
    assert "compaction may have removed the record of a deletion" in (too_old(found, now_ms()) or "")
    assert too_old(compared(age_ms=COMPACTION_LAG_MS - 60_000), now_ms()) is None
    with pytest.raises(Refused, match=r"diff-1 is 7\.0 days old") as error:
        plan_rollback(world(promoted(age_ms=COMPACTION_LAG_MS + 60_000), v1=100, v2=100), "a")
    assert error.value.fix == "run `switchyard diff a.v2` first"
    # an operator may say that a promotion takes an older diff: not one as old as that, of a table
    new, live, long_s = release("a.v2"), release("a.v1"), COMPACTION_LAG_MS / 500
    [lacking] = not_compared(new, live, found, long_s, None, now_ms=now_ms())
    # an approval makes it anew before anything else
    assert not_compared(new, live, found, long_s, None, now_ms=now_ms(), renewed=True) == []
    assert "7.0 days old" in lacking
    assert not_compared(new, live, found, long_s, None, now_ms=now_ms(), kept_ms=now_ms()) == []
    assert (
        not_compared(release("a.v2", table=False), release("a.v1", table=False), found, long_s, None, now_ms=now_ms())
        == []
    )


def test_a_dead_release_is_compared_anew_on_the_way_back(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestration.operations.planning.rollback._warnings_without_meeting", lambda *_: ("fenced",))
    known = world(promoted(age_ms=COMPACTION_LAG_MS + 60_000), v1=100, v2=100)
    plan = plan_rollback(known, "a", fence=True)
    assert plan.warnings[0] == "fenced" and "days old" in plan.warnings[1]
    assert [type(stage) for stage in plan.stages] == [Fence, ChooseStart, Compare, WriteDelta, AppendSwitch]
    assert [s.evidence for s in plan.stages if isinstance(s, WriteDelta | AppendSwitch)] == [plan.id] * 2


def test_results_that_did_not_meet_are_enough_for_consumers_and_not_to_judge_a_version_by() -> None:
    log = Log(*staged("a.v1"), *staged("a.v2"), evidence("a.v1", "a.v2", apart=True))
    new, live = (log.state().releases[f"a.v{n}"] for n in (2, 1))
    assert evidence_for(log.state(), new, live) is None
    assert (found := evidence_for(log.state(), new, live, apart=True)) is not None and found.id == "diff-1"


def test_what_is_live_is_compared_with_the_one_that_a_rollback_goes_to() -> None:
    # a third version was promoted when the second had been left: the newest standby is not where it came from
    log = Log(*staged("a.v1", "a.v2", "a.v3"), *switched(1, None, "a.v1"), *switched(2, "a.v1", "a.v2"),
              *switched(3, "a.v2", "a.v1"), *switched(4, "a.v1", "a.v3"))  # fmt: skip
    state = log.state()
    assert state.releases["a.v2"].state == "standby"
    back = before_live(state, "a")
    assert back is not None and back.name == _other(state, state.releases["a.v3"]).name == "a.v1"
    assert before_live(Log(*staged("a.v1"), *switched(1, None, "a.v1")).state(), "a") is None


# -- the order of it


class Order:
    """A delta that says when it was asked for what."""

    def __init__(self, log: Log, *, fails: bool = False) -> None:
        self.log, self.fails = log, fails
        self.asked: list[tuple[str, bool]] = []

    def _note(self, what: str) -> None:
        operation = self.log.state().operations["rollback-1"]
        self.asked.append((what, operation.align is not None))

    def begin(self) -> None:
        self._note("begin")

    def advance(self, raise_if_closed: Callable[[], None], few: int) -> None:
        self._note("advance")
        raise_if_closed()
        if self.fails:
            raise SwitchyardError("the broker is slow")

    def close(self) -> None:
        pass


def applied(monkeypatch: pytest.MonkeyPatch, log: Log, delta: Order) -> None:
    plan = Plan(id="rollback-1", operation=Kind.ROLLBACK, releases=("a.v1", "a.v2"), stages=(PREPARE, ALIGN))

    def opened(work: Any, *, at_once: bool) -> None:
        work.since[Delta] = delta

    monkeypatch.setattr("orchestration.operations.applying.applier.begin_reading", opened)
    monkeypatch.setattr(Work, "await_progress", lambda *_: None)
    monkeypatch.setattr(
        "orchestration.operations.applying.meeting.HeartbeatTail", lambda _: SimpleNamespace(close=lambda: None)
    )
    execute(context_of(log), plan)


def test_the_drivers_are_asked_to_meet_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    log = promoted()
    delta = Order(log)
    applied(monkeypatch, log, delta)
    assert delta.asked == [("advance", False)]
    order = AlignOrdered(id="rollback-1", release="a.v1", other="a.v2", switch=3)
    [found] = [e for e in log.entries if isinstance(e, AlignOrdered)]
    assert found.model_copy(update={"op": None}) == order


def test_they_are_not_asked_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    log = promoted()
    with pytest.raises(SwitchyardError, match="the broker is slow"):
        applied(monkeypatch, log, Order(log, fails=True))
    assert not any(isinstance(e, AlignOrdered) for e in log.entries)
    assert log.state().operations["rollback-1"].closed is not None


@pytest.mark.parametrize("how", ["deadline", "abandoned"])
def test_it_ends_where_the_operation_does(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    log = promoted()

    class Ended(Order):
        def advance(self, raise_if_closed: Callable[[], None], few: int) -> None:
            if how == "abandoned":
                log.entries.append(Closed(id="rollback-1", outcome="abandoned"))
            else:
                opened = next(e for e in log.entries if isinstance(e, Opened))
                log.entries.append(opened.model_copy(update={"deadline_ms": 1}))
            raise_if_closed()

    with pytest.raises(SwitchyardError, match="was abandoned" if how == "abandoned" else "before the deadline"):
        applied(monkeypatch, log, Ended(log))
    assert not any(isinstance(e, AlignOrdered) for e in log.entries)


def test_resumed_while_they_meet_it_is_done_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    log = promoted()
    plan = Plan(id="rollback-1", operation=Kind.ROLLBACK, releases=("a.v1", "a.v2"), stages=(PREPARE, ALIGN))
    begin(context_of(log), plan, [AlignOrdered(id="rollback-1", release="a.v1", other="a.v2", switch=3)])
    delta = Order(log)
    applied(monkeypatch, log, delta)
    assert delta.asked == [("begin", True)]
    assert sum(isinstance(e, AlignOrdered) for e in log.entries) == 1
