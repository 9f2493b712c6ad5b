"""Who carries an operation out, and what stops it: another process that lives, its end by order, a world that has changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestration.commands.show import show_plan
from orchestration.operations import journal
from orchestration.operations.applying import work
from orchestration.operations.applying.applier import Applier
from orchestration.operations.applying.work import Work
from orchestration.operations.context import Context
from orchestration.operations.execute import _as_before, _run_again, execute
from orchestration.operations.execute import abandon as end
from orchestration.operations.looking.in_use import notes, outdated_inputs, refuse_needed
from orchestration.operations.looking.progress import processed
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.generations import BeginGeneration
from orchestration.operations.plans.stages.releases import SetState, Want
from pipelines.engine.lease import this_process
from pipelines.errors import Refused, SwitchyardError
from pipelines.model.entries import (
    Carried,
    Closed,
    Entry,
    GenerationStarted,
    Holder,
    InputSpec,
    Opened,
    TopicsKnown,
    WantedSet,
)
from pipelines.model.names import dead_letter_topic
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Progress
from pipelines.model.registry import RegistryState, Release
from pipelines.model.switch import expired
from pipelines.processes import start_ticks
from tests.operations.builders import POSITION, Log, context_of, generation, release, spec, staged, switched
from tests.shared.stages import before_stage

BEGIN = BeginGeneration(release="a.v1", generation=2, start=POSITION, old=1, links=0)
PLAN = Plan(
    id="reset-1",
    operation=Kind.RESET,
    releases=("a.v1",),
    stages=(Want(release="a.v1", wanted="stopped", before="running"), SetState(release="a.v1", state="ready"), BEGIN),
)
ELSEWHERE = Holder(host="another-host", boot_id="b", pid=7, started=1)


def holder_of(log: Log, pid: int) -> Holder:
    return this_process(context_of(log).settings).model_copy(update={"pid": pid, "started": started(pid)})


def started(pid: int) -> int:
    return start_ticks(pid) or 1


def under_way(*also: Entry) -> Log:
    log = Log(*staged("a.v1"), *also)
    log.entries.append(Opened(id=PLAN.id, name="reset", releases=("a.v1",), deadline_ms=2**60))
    return log


SHAPES = [
    {"tables": [{"name": "what"}]},
    {"tables": 3},
    {"stages": [{"stage": ["Want"]}]},
    {"stages": [None]},
    {"stages": {"a": 1}},
    {"warnings": 3},
]


@pytest.mark.parametrize("plan", SHAPES, ids=lambda plan: str(plan)[:30])
def test_an_operation_whose_plan_has_another_shape_can_be_ended(plan: dict[str, Any]) -> None:
    log = Log(*staged("a.v1"), Opened(id="reset-9", name="reset", releases=("a.v1",), deadline_ms=2**60, plan=plan))
    with pytest.raises(SwitchyardError, match="reset-9 in the journal can't be read") as unread:
        Plan.from_journal(log.state().operations["reset-9"].opened)
    assert "`switchyard abandon reset-9`" in unread.value.fix
    end(context_of(log), "reset-9")
    closed = log.state().operations["reset-9"].closed
    assert closed is not None and closed.outcome == "abandoned"


def test_words_of_a_plan_that_are_no_text_are_shown_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    table = {"title": 1, "columns": [None], "rows": [[{"a": 1}]]}
    said = {"facts": {"a": 5}, "tables": [table], "warnings": [2], "undo": 3, "stages": []}
    plan = Plan.from_journal(Opened(id="reset-9", name="reset", releases=("a.v1",), deadline_ms=1, plan=said))
    show_plan(plan)
    for shown in (capsys.readouterr().out, plan.markdown()):
        assert all(text in shown for text in ("5", "'a': 1", "2", "3"))


def test_who_may_give_no_signs_of_life_takes_nothing_over() -> None:
    log = under_way(Carried(id=PLAN.id, holder=ELSEWHERE))
    before = list(log.entries)
    log.refuses_signs = Refused("no right", fix="`switchyard acls`")
    with pytest.raises(Refused, match="no right"):
        journal.journaled(context_of(log), PLAN, lambda: pytest.fail("it is carried out"))
    assert log.entries == before


def test_who_does_not_know_the_time_ends_nothing() -> None:
    log = under_way()
    log.entries[-1] = log.entries[-1].model_copy(update={"deadline_ms": 1})
    log.knows_time = False
    assert journal.expire(cast(Any, log)).operations[PLAN.id].closed is None
    log.knows_time = True
    assert journal.expire(cast(Any, log)).operations[PLAN.id].closed is not None


def test_one_process_at_a_time_carries_an_operation_out() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        log = under_way()
        log.entries.append(Carried(id=PLAN.id, holder=holder_of(log, child.pid)))
        with pytest.raises(Refused, match=f"process {child.pid} on .* is carrying out"):
            journal.begin(context_of(log), PLAN)
        # and whoever failed beside it has not ended it
        journal.fail(context_of(log), PLAN.id, SwitchyardError("too late"))
        assert log.state().operations[PLAN.id].closed is None
    finally:
        child.communicate(b"\n")
    journal.begin(context_of(log), PLAN)
    carrier = log.state().operations[PLAN.id].carrier
    assert carrier == this_process(context_of(log).settings)
    length = len(log.entries)
    journal.begin(context_of(log), PLAN)
    assert len(log.entries) == length, "the same process goes on"


def test_one_of_another_host_that_is_silent_is_taken_over_and_does_nothing_more() -> None:
    """Whether it lives can't be known, and the operation must not wait for it for ever."""
    log = under_way()
    log.entries.append(Carried(id=PLAN.id, holder=ELSEWHERE))
    with pytest.raises(Refused, match="process 7 on another-host has taken over reset-1") as error:
        Applier(context_of(log), PLAN).run()
    assert "`switchyard operations`" in error.value.fix
    assert not any(isinstance(entry, WantedSet) for entry in log.entries)
    passed_s = iter(range(100))
    journal.begin(context_of(log, sleep=lambda _: None, monotonic=lambda: next(passed_s)), PLAN)
    with before_stage(Want, lambda: log.entries.append(Carried(id=PLAN.id, holder=ELSEWHERE))), pytest.raises(Refused):
        Applier(context_of(log), PLAN).run()
    assert not any(isinstance(entry, WantedSet) for entry in log.entries)


class Hosts:
    """Two hosts with one registry, whose clock is the broker's. In all else they look the same, as clones do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = under_way()
        self.now_ms = 1_000_000
        self.here = "a"
        # what happens while a host listens
        self.meanwhile: Callable[[], None] = lambda: None
        monkeypatch.setattr(self.log, "now_ms", lambda: self.now_ms)
        for module in (journal, work):
            monkeypatch.setattr(module, "this_process", lambda _: self.process(self.here))

    def process(self, host: str) -> Holder:
        return Holder(host="clone", boot_id=f"boot of {host}", pid=7, started=1, namespaces="pid:[1]")

    def resumes(self, host: str) -> bool:
        """Whether `host` may carry the operation out now."""
        self.here = host
        try:
            journal.begin(context_of(self.log, sleep=self._pass, monotonic=lambda: self.now_ms / 1000), PLAN)
        except Refused as error:
            assert error.what.startswith("process 7 on clone (last sign of life ") and "carrying out" in error.what
            return False
        # the registry stamps it
        self.log.entries[-1] = self.log.entries[-1].model_copy(update={"at_ms": self.now_ms})
        return True

    def _pass(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)
        self.meanwhile()

    def gives_a_sign(self, host: str) -> None:
        self.log.heartbeats.signs[self.process(host)] = self.now_ms


def test_of_two_hosts_that_resume_an_operation_one_carries_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(monkeypatch)
    assert hosts.resumes("a") and not hosts.resumes("b")
    for _ in range(60):
        hosts.now_ms += 1_000
        hosts.gives_a_sign("a")
        assert not hosts.resumes("b")
    # from here on, the first host is silent
    hosts.now_ms += 14_000
    assert not hosts.resumes("b")
    # after an outage, a sign is old at first
    hosts.now_ms += 60_000
    hosts.meanwhile = lambda: hosts.gives_a_sign("a")
    assert not hosts.resumes("b")
    hosts.meanwhile = lambda: None
    silent_ms = hosts.now_ms
    while not hosts.resumes("b"):
        hosts.now_ms += 1_000
    assert 19_000 <= hosts.now_ms - silent_ms <= 21_000
    # it wakes up: it changes nothing, and ends nothing
    hosts.here = "a"
    for late in (
        lambda: Applier(context_of(hosts.log), PLAN).run(),
        lambda: hosts.resumes("a") or Work(context_of(hosts.log), PLAN).now(),
    ):
        with pytest.raises(Refused, match="process 7 on clone has taken over reset-1"):
            late()
    journal.finish(context_of(hosts.log), PLAN)
    journal.fail(context_of(hosts.log), PLAN.id, SwitchyardError("too late"))
    assert hosts.log.state().operations[PLAN.id].closed is None
    hosts.here = "b"
    journal.finish(context_of(hosts.log), PLAN)
    assert hosts.log.state().operations[PLAN.id].closed is not None


def test_a_sign_that_gets_too_old_while_a_host_resumes_does_not_spare_it_the_listening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = Hosts(monkeypatch)
    assert hosts.resumes("a")
    step = hosts.log.step

    def slow_step(*given: Any, **also: Any) -> RegistryState:
        hosts.now_ms += 20
        return step(*given, **also)

    monkeypatch.setattr(hosts.log, "step", slow_step)
    hosts.gives_a_sign("a")
    silent_ms = hosts.now_ms
    hosts.now_ms += 14_990
    assert not hosts.resumes("b")
    assert hosts.resumes("b")
    assert hosts.now_ms - silent_ms >= 20_000


def test_a_host_whose_clock_is_wrong_ends_no_operation_early(monkeypatch: pytest.MonkeyPatch) -> None:
    log = under_way()
    log.entries[-1] = Opened(id=PLAN.id, name="reset", releases=("a.v1",), deadline_ms=60_000)
    # the clock of this host is years past the deadline
    monkeypatch.setattr(log, "now_ms", lambda: 59_999)
    assert journal.expire(cast(Any, log)).operations[PLAN.id].closed is None
    assert context_of(log).state_for_planning().operations[PLAN.id].closed is None
    monkeypatch.setattr(log, "now_ms", lambda: 60_001)
    closed = journal.expire(cast(Any, log)).operations[PLAN.id].closed
    assert closed is not None and closed.outcome == "expired"


def test_an_operation_that_was_ended_does_nothing_more() -> None:
    log = under_way()
    said: list[str] = []

    def abandon() -> None:
        journal.abandon(context_of(log), PLAN.id, reason="by mistake")

    with before_stage(Want, abandon), pytest.raises(Refused, match="reset-1 was abandoned in the meantime: by mistake"):
        Applier(replace(context_of(log), say=said.append), PLAN).run()
    assert said == PLAN.steps()[:1]
    assert log.state().releases["a.v1"].generation == 1


@pytest.mark.parametrize(
    "changed",
    [lambda: switched(1, None, "a.v1"), lambda: [generation("a.v1", 2)]],
    ids=["went live", "was reset by another"],
)
def test_a_plan_is_not_carried_out_on_another_world(changed: Callable[[], list[Entry]]) -> None:
    as_planned = (*staged("a.v1"), WantedSet(release="a.v1", wanted="running"))
    with pytest.raises(Refused, match="has changed since the plan was made"):
        journal.begin(context_of(Log(*as_planned, *changed())), PLAN)
    journal.begin(context_of(Log(*as_planned)), PLAN)


@pytest.mark.parametrize(
    ("planned", "now", "done"), [("stopped", "running", "started"), ("running", "stopped", "stopped")]
)
def test_a_release_that_was_started_since_the_plan_is_not_stopped(planned: Any, now: Any, done: str) -> None:
    plan = replace(PLAN, stages=(Want(release="a.v1", wanted="stopped", before=planned), *PLAN.stages[1:]))
    with pytest.raises(Refused, match=rf"a\.v1 was {done} after the plan was made"):
        journal.begin(context_of(Log(*staged("a.v1"), WantedSet(release="a.v1", wanted=now))), plan)
    log = Log(*staged("a.v1"), WantedSet(release="a.v1", wanted=planned))
    journal.begin(context_of(log), plan)
    # what it has set itself is no reason to stop half-way
    log.entries.append(WantedSet(release="a.v1", wanted="stopped"))
    journal.begin(context_of(log), plan)


def test_what_has_begun_to_empty_a_result_can_only_be_finished() -> None:
    entry = generation("a.v1", 2, result=1, cleared=True).model_copy(update={"op": PLAN.id})
    log = under_way(entry)
    with pytest.raises(
        Refused, match=r"has started to empty the result of a\.v1, so it can only be finished"
    ) as caught:
        journal.abandon(context_of(log), PLAN.id)
    assert "switchyard resume reset-1" in caught.value.fix
    assert expired(log.state(), 2**61) == []
    # before that it is like any other
    assert expired(under_way().state(), 2**61) != []
    journal.abandon(context_of(under_way()), PLAN.id)


@pytest.mark.parametrize("before", ["running", "stopped"])
def test_a_release_is_wanted_as_before_where_nothing_was_changed(before: Any) -> None:
    plan = replace(
        PLAN, stages=(Want(release="a.v1", wanted="stopped", before=before), Want(release="a.v1", wanted="running"))
    )
    again = _as_before(plan)
    assert again == ([WantedSet(release="a.v1", wanted="running")] if before == "running" else [])


# -- what status says


def ended(offset: int, number: int = 1) -> Progress:
    at = SourcePosition(sources={"trades": {0: offset}})
    return Progress.model_validate(
        {
            "release": "a.v1", "generation": number, "token": 1, "at_ms": 1,
            "boundary": Boundary(batch_id=3, position=at), "result": ResultPosition(topics={}),
            "batch": {}, "total": {},
        }
    )  # fmt: skip


def owner(*begun: GenerationStarted) -> Release:
    first = generation("a.v1", at_ms=1)
    return release(
        "a.v1", generations={1: first, **{g.generation: g for g in begun}}, under=begun[-1] if begun else first
    )


def reader() -> Release:
    under = generation("b.v1", at_ms=10)
    made = release("b.v1", generations={1: under}, under=under)
    return replace(made, spec=spec("b.v1", inputs={"results": InputSpec(topic="a.v1.g1", partitions=1)}))


def at(op: str, number: int, offset: int, **changes: Any) -> GenerationStarted:
    begun = generation("a.v1", number, ended=ended(9), at_ms=20 + number, **changes)
    return begun.model_copy(update={"op": op, "start": SourcePosition(sources={"trades": {0: offset}})})


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        ([], []),
        ([at("reset-2", 2, 0)], ["a.v1 no longer writes a.v1.g1; since reset-2 it writes a.v1.g2: stage a version of b that reads a.v1.g2 (`switchyard stage b`)"]),
        ([at("reset-2", 2, 0, result=1)], ["a.v1 wrote a.v1.g1 again with reset-2: `switchyard reset b.v1 --to-earliest`"]),
        ([at("reset-2", 2, 9, result=1, cleared=True)], ["a.v1 wrote a.v1.g1 again with reset-2: `switchyard reset b.v1 --to-earliest`"]),
        # a record was left out: nothing came again
        ([at("reset-2", 2, 10, result=1)], []),
        # and what came again before is not forgotten
        ([at("reset-2", 2, 0, result=1), at("reset-3", 3, 10, result=1)],
         ["a.v1 wrote a.v1.g1 again with reset-2: `switchyard reset b.v1 --to-earliest`"]),
    ],
)  # fmt: skip
def test_who_reads_what_was_reset_is_told_so(begun: list[GenerationStarted], said: list[str]) -> None:
    state = RegistryState(releases={"a.v1": owner(*begun), "b.v1": reader()})
    assert outdated_inputs(state, state.releases["b.v1"]) == said
    assert notes(state, state.releases["b.v1"]) == said
    # one that began after it has read what there is
    late = generation("b.v1", at_ms=99)
    assert outdated_inputs(state, replace(reader(), under=late)) == [s for s in said if "no longer" in s]


def test_an_undo_leaves_its_readers_as_they_were() -> None:
    back = generation("a.v1", 1, ended=ended(9, number=2), at_ms=40).model_copy(update={"op": "undo-1"})
    known = owner(at("reset-2", 2, 0))
    state = RegistryState(releases={"a.v1": replace(known, under=back), "b.v1": reader()})
    assert outdated_inputs(state, state.releases["b.v1"]) == []


def test_a_release_that_is_read_is_needed() -> None:
    state = RegistryState(releases={"a.v1": owner(), "b.v1": reader()})
    with pytest.raises(Refused, match=r"a\.v1 is still needed by b\.v1"):
        refuse_needed(context_of(Log()), state, state.releases["a.v1"])
    gone = replace(reader(), state="retired")
    refuse_needed(context_of(Log()), RegistryState(releases={"a.v1": owner(), "b.v1": gone}), owner())


def test_dead_letters_that_were_deleted_with_their_topic_are_told_of() -> None:
    log, topic = under_way(), dead_letter_topic("a.v1")
    for number, topic_id in enumerate(("first", "first", "second")):
        log.entries.append(TopicsKnown(release="a.v1", generation=1, own={topic: topic_id}, at_ms=number * 60_000))
        said = notes(log.state(), log.state().releases["a.v1"])
        assert bool(said) is (topic_id == "second")
    assert said == [
        "its dead-letter topic was deleted. Since 1970-01-01 00:02:00 UTC it has a new one: the dead letters before that are lost"
    ]
    # the next generation writes its own
    log.entries.append(generation("a.v1", 2))
    assert notes(log.state(), log.state().releases["a.v1"]) == []


def test_a_reset_that_was_left_when_it_had_begun_is_told_of() -> None:
    begun = at("reset-1", 2, 20, result=1)
    log = under_way(begun)
    assert notes(log.state(), log.state().releases["a.v1"]) == []
    log.entries.append(Closed(id="reset-1", outcome="abandoned"))
    [said] = notes(log.state(), log.state().releases["a.v1"])
    assert (
        said.startswith("reset-1 was abandoned after it had started generation 2") and "switchyard undo reset-1" in said
    )


def test_what_is_abandoned_before_it_has_changed_anything_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    opened = Opened(id=PLAN.id, name="reset", releases=("a.v1",), deadline_ms=2**60, plan=PLAN.for_journal())
    log = Log(*staged("a.v1"), opened, WantedSet(release="a.v1", wanted="stopped"))
    monkeypatch.setattr(Context, "holder", lambda *_: None)
    launcher: Any = SimpleNamespace(launch=launched.append)
    end(replace(context_of(log), launcher=launcher), PLAN.id)
    state = log.state()
    assert state.releases["a.v1"].wanted == "running" and launched == ["a.v1"]
    closed = state.operations[PLAN.id].closed
    assert closed is not None and closed.outcome == "abandoned"


def test_what_is_abandoned_when_it_has_begun_a_generation_stays_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    opened = Opened(id=PLAN.id, name="reset", releases=("a.v1",), deadline_ms=2**60, plan=PLAN.for_journal())
    begun = generation("a.v1", 2).model_copy(update={"op": PLAN.id})
    log = Log(*staged("a.v1"), opened, WantedSet(release="a.v1", wanted="stopped"), begun)
    monkeypatch.setattr(Context, "holder", lambda *_: None)
    launcher: Any = SimpleNamespace(launch=launched.append)
    end(replace(context_of(log), launcher=launcher), PLAN.id)
    assert log.state().releases["a.v1"].wanted == "stopped" and launched == []


@pytest.mark.parametrize("has_started", [False, True])
def test_a_reset_that_fails_before_it_has_changed_anything_leaves_its_release_running(
    monkeypatch: pytest.MonkeyPatch, has_started: bool
) -> None:
    launched: list[str] = []
    log = Log(*staged("a.v1"), WantedSet(release="a.v1", wanted="running"))

    def fail(_: Applier) -> None:
        log.entries.append(WantedSet(release="a.v1", wanted="stopped"))
        if has_started:
            log.entries.append(generation("a.v1", 2).model_copy(update={"op": PLAN.id}))
        raise SwitchyardError("it did not end its batch")

    monkeypatch.setattr(Applier, "run", fail)
    monkeypatch.setattr(Context, "holder", lambda *_: None)
    launcher: Any = SimpleNamespace(launch=launched.append)
    with pytest.raises(SwitchyardError, match="did not end its batch") as error:
        execute(replace(context_of(log), launcher=launcher), PLAN)
    closed = log.state().operations[PLAN.id].closed
    if has_started:
        assert closed is None and f"switchyard resume {PLAN.id}" in error.value.fix
        assert log.state().releases["a.v1"].wanted == "stopped" and launched == []
    else:
        assert closed is not None and closed.outcome == "failed"
        assert log.state().releases["a.v1"].wanted == "running" and launched == ["a.v1"]


@pytest.mark.parametrize(
    ("also", "fix"),
    [
        ([], "start them; to continue: `switchyard resume reset-1`"),
        ([Closed(id=PLAN.id, outcome="abandoned", detail="by mistake")], "start them"),
        ([Carried(id=PLAN.id, holder=ELSEWHERE)], "start them"),
    ],
    ids=["open", "ended", "taken over"],
)
def test_only_an_operation_that_is_still_open_is_to_be_resumed(
    monkeypatch: pytest.MonkeyPatch, also: list[Entry], fix: str
) -> None:
    log = Log(*staged("a.v1"), WantedSet(release="a.v1", wanted="running"))

    def fail(_: Applier) -> None:
        log.entries.append(generation("a.v1", 2).model_copy(update={"op": PLAN.id}))
        log.entries.extend(also)
        raise SwitchyardError("followers have not passed switch 2", fix="start them")

    monkeypatch.setattr(Applier, "run", fail)
    monkeypatch.setattr(Context, "holder", lambda *_: None)
    with pytest.raises(SwitchyardError) as error:
        execute(context_of(log), PLAN)
    assert error.value.fix == fix


def test_an_operation_that_is_over_does_not_begin_again() -> None:
    log = under_way()
    log.entries.append(Closed(id=PLAN.id, outcome="done"))
    with pytest.raises(Refused) as error:
        journal.begin(context_of(log), PLAN)
    assert error.value.what == "reset-1 is already over: done"


@pytest.mark.parametrize(
    "stage", [{"stage": "DeleteFiles", "release": "/home", "code_digest": None}, {"stage": "New"}, {}]
)
def test_a_plan_that_can_not_be_read_can_be_abandoned(stage: dict[str, Any]) -> None:
    opened = Opened(id=PLAN.id, name="reset", releases=("a.v1",), deadline_ms=2**60, plan={"stages": [stage]})
    log = Log(*staged("a.v1"), opened, WantedSet(release="a.v1", wanted="stopped"))
    end(context_of(log), PLAN.id)
    state = log.state()
    assert state.releases["a.v1"].wanted == "stopped"
    closed = state.operations[PLAN.id].closed
    assert closed is not None and closed.outcome == "abandoned"


@pytest.mark.parametrize("lived", [False, True], ids=["a candidate", "the live one"])
def test_a_replay_is_of_what_consumers_have_had(monkeypatch: pytest.MonkeyPatch, lived: bool) -> None:
    end = SourcePosition(sources={"trades": {0: 9}})
    progress = Progress(release="a.v2", generation=1, token=1, boundary=Boundary(batch_id=1, position=end),
                        result=ResultPosition(topics={}), at_ms=0)  # fmt: skip
    monkeypatch.setattr("orchestration.operations.context.Context.progress", lambda *_: progress)
    log = Log(*staged("a.v1", "a.v2"), *switched(1, None, "a.v2" if lived else "a.v1"))
    found = processed(context_of(log), log.state(), log.state().releases["a.v1"].spec)
    assert [span.end for span in found] == ([end] if lived else [])


def test_a_result_ends_where_the_generation_that_wrote_it_last_ended() -> None:
    def ended(number: int, result: int) -> Progress:
        return Progress(release="a.v1", generation=number, token=1,
                        boundary=Boundary(batch_id=1, position=SourcePosition(sources={})),
                        result=ResultPosition(topics={"a.v1.g1": {0: result}}), at_ms=0)  # fmt: skip

    # the second went on in the first's result and was taken back; the first ended once more, further on
    log = Log(*staged("a.v1"), generation("a.v1", 2, ended=ended(1, 5), result=1),
              generation("a.v1", 1, ended=ended(2, 7)), generation("a.v1", 3, ended=ended(1, 9)))  # fmt: skip
    found = log.state().releases["a.v1"]
    assert found.last_of("a.v1.g1") == 1
    assert (end := found.end_of("a.v1.g1")) is not None and end.topics["a.v1.g1"] == {0: 9}


def test_what_a_generation_read_that_was_given_up_is_no_replay() -> None:
    def at(offset: int, generation: int) -> Progress:
        end = SourcePosition(sources={"trades": {0: offset}})
        return Progress(release="a.v1", generation=generation, token=1, boundary=Boundary(batch_id=1, position=end),
                        result=ResultPosition(topics={}), at_ms=0)  # fmt: skip

    # its consumers read the first; the second was abandoned, and taken back by the third, which goes on in the first's result
    log = Log(*staged("a.v1"), *switched(1, None, "a.v1"), generation("a.v1", 2, ended=at(9, 1)),
              generation("a.v1", 3, ended=at(50, 2), result=1))  # fmt: skip
    again = log.state().releases["a.v1"]
    found = processed(context_of(log), log.state(), again.spec, again)
    assert [span.end.sources["trades"][0] for span in found] == [9]


@pytest.mark.parametrize(
    ("also", "starts"),
    [
        ([], False),
        ([Opened(id=PLAN.id, name="reset", releases=("a.v1",), deadline_ms=2**60)], False),
        ([Opened(id=PLAN.id, name="reset", releases=("a.v1",), deadline_ms=2**60), Closed(id=PLAN.id, outcome="failed")], True),
    ],
    ids=["refused", "another process is at it", "failed itself"],
)  # fmt: skip
def test_only_what_a_plan_itself_has_stopped_is_started_again(
    monkeypatch: pytest.MonkeyPatch, also: list[Entry], starts: bool
) -> None:
    launched: list[str] = []
    log = Log(*staged("a.v1"), WantedSet(release="a.v1", wanted="running"), *also)
    monkeypatch.setattr(Context, "holder", lambda *_: None)
    launcher: Any = SimpleNamespace(launch=launched.append)
    _run_again(replace(context_of(log), launcher=launcher), PLAN)
    assert launched == (["a.v1"] if starts else [])
