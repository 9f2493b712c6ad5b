"""What a reset moves, what it must read completely, and what its plan says of it. No broker, no Spark."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestration.operations.looking.costs import Cost
from orchestration.operations.looking.history import MissingHistory
from orchestration.operations.planning.reset.decision import Reset
from orchestration.operations.planning.reset.export import by_topic
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.positions import read_whole, scope_of, where_to
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.show import cost_facts, warnings_of
from orchestration.operations.plans.positions import until_of
from pipelines.errors import BadUsage, Refused
from pipelines.model.entries import Staged
from pipelines.model.missing import InputNow
from pipelines.model.parts import Loss
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Progress
from pipelines.model.registry import RegistryState
from pipelines.model.reset import Choice, Seen, Target
from tests.operations.builders import Kafka, Log, context_of, generation, release, spec, switched
from tests.shared import typed

EARLIEST = Target(kind="earliest", text="--to-earliest")
SEEN = {("trades", p): Seen(topic="trades", first=0, end=9, position=5) for p in (0, 1)}


def scoped(offsets: dict[str, dict[int, int]], inputs: dict[str, tuple[int, ...] | None]) -> set[tuple[str, int]]:
    request = Request(target=Target(kind="file", text="--from-file f.csv", offsets=offsets), inputs=inputs)
    return scope_of(release(), SEEN, request)


def test_a_file_moves_what_it_names() -> None:
    assert scoped({"trades": {1: 3}}, {}) == {("trades", 1)}
    assert scoped({"trades": {1: 3}}, {"trades": (1,)}) == {("trades", 1)}


@pytest.mark.parametrize(
    ("offsets", "inputs", "said"),
    [
        ({"orders": {0: 3}}, {}, "does not read orders"),
        ({"orders": {0: 3}}, {"trades": None}, "does not read orders"),
        ({"trades": {7: 3}}, {}, r"trades has no partition 7"),
        ({"trades": {7: 3}}, {"trades": None}, r"trades has no partition 7"),
        (
            {"trades": {0: 3, 1: 3}},
            {"trades": (0,)},
            r"has a position for trades\[1\], which --input-topics does not name",
        ),
    ],
)
def test_a_line_of_a_file_that_would_move_nothing_is_refused(
    offsets: dict[str, dict[int, int]], inputs: dict[str, tuple[int, ...] | None], said: str
) -> None:
    with pytest.raises(BadUsage, match=said):
        scoped(offsets, inputs)


def test_what_is_wrong_with_an_end_or_a_record_is_said_of_that_option() -> None:
    def refused(request: Request) -> tuple[str, str]:
        old = SourcePosition(sources={"trades": {0: 5, 1: 5}})
        with pytest.raises(Refused) as error:
            where_to(context_of(Log()), release("a.v1"), request, SEEN, set(SEEN), old)
        return error.value.what, error.value.fix

    earliest = Target(kind="earliest", text="--to-earliest")
    what, fix = refused(Request(target=earliest, until=until_of("10")))
    assert what.startswith("--until 10 is not possible: trades[0] offset 10 is past the end, 9; trades[1]")
    assert fix == "leave out --until, or give an end that every partition has, like --until latest"
    skip = Target(kind="skip", text="--skip trades:0:4", offsets={"trades": {0: 4}})
    assert refused(Request(target=skip)) == (
        "trades[0] offset 4 was already read",
        "`switchyard bisect a.v1` finds the record that makes a batch fail",
    )


def test_one_file_can_not_say_two_offsets_of_a_partition() -> None:
    topics = {"left": "trades", "right": "trades", "orders": "orders"}
    level = {"left": {0: 5, 1: 6}, "right": {0: 5, 1: 6}, "orders": {0: 9}}
    assert by_topic(topics, SourcePosition(sources=level)) == {"trades": {0: 5, 1: 6}, "orders": {0: 9}}
    with pytest.raises(Refused, match=r"trades\[1\]: 6 for one source and 7 for right"):
        by_topic(topics, SourcePosition(sources={**level, "right": {0: 5, 1: 7}}))


@pytest.mark.parametrize(("output", "state"), [("new", "archived"), ("tombstone", "archived"), ("truncate", "deleted")])
def test_a_plan_says_what_becomes_of_the_state(output: Any, state: str) -> None:
    choice = Choice(state="clear", output=output, move="back", table=True, stateful=True)
    assert state in cost_facts(Cost(state_bytes=5, result_records=1, result_bytes=1), choice)["app state"]


@pytest.mark.parametrize("state", ["clear", "keep"])
def test_a_plan_says_that_a_release_without_a_batch_has_no_state(state: Any) -> None:
    choice = Choice(state=state, output="keep", move="back", table=True, stateful=False)
    nothing, some = (Cost(state_bytes=size, result_records=0, result_bytes=0) for size in (0, 5))
    assert cost_facts(nothing, choice, fresh=True)["app state"] == "none: this generation has not run a batch"
    # one that has run, and one whose progress topic is gone
    assert "archived" in cost_facts(nothing, choice)["app state"]
    assert "archived" in cost_facts(some, choice, fresh=True)["app state"]


@pytest.mark.parametrize(("output", "word"), [("tombstone", "cleared"), ("truncate", "deleted")])
def test_a_plan_has_one_word_for_what_happens_to_the_result(output: Any, word: str) -> None:
    choice = Choice(state="clear", output=output, move="back", table=True, stateful=True)
    asked = Request(target=Target(kind="earliest", text="--to-earliest"), output=output)
    old, new = (SourcePosition(sources={"trades": {0: offset, 1: offset}}) for offset in (5, 0))
    reset = Reset(
        state=RegistryState(), release=release("a.v1"), request=asked, choice=choice, lost=[], gone=set(), last=None,
        seen=SEEN, scope=set(SEEN), old=old, new=new, end=None, left_out=None,
    )  # fmt: skip
    result = cost_facts(Cost(state_bytes=5, result_records=1, result_bytes=1), choice)["result"]
    assert f": {word}" in result
    assert f"the {word} result can't be brought back: this reset has no undo" in warnings_of(reset, replay_s=None)


@pytest.mark.parametrize(
    ("target", "state", "scope", "lost", "expected"),
    [
        ("earliest", "clear", {0, 1}, [], {0, 1}),
        ("earliest", "clear", {1}, [], {1}),
        ("earliest", "keep", {0, 1}, [], set()),
        ("current", "clear", {0, 1}, [], set()),
        # an offset of the old topic means nothing in the recreated one
        ("current", "clear", {0}, [("input", "trades", "another")], {0, 1}),
        ("earliest", "clear", set(), [("input", "trades", "another")], {0, 1}),
        ("current", "clear", {0, 1}, [("input", "orders", "another")], set()),
        ("current", "clear", {0, 1}, [("result", "trades", "another")], set()),
    ],
)
def test_what_is_read_anew_must_be_there_whole_or_be_accepted(
    target: Any, state: Any, scope: set[int], lost: list[Any], expected: set[int]
) -> None:
    here = Seen(topic="trades", first=0, end=9, position=5, committed=5)
    request = Request(target=Target(kind=target, text=target), state=state)
    losses = [Loss(release="a.v1", part=part, name=name, how=how) for part, name, how in lost]
    both = {("trades", 0): here, ("trades", 1): here}
    found = read_whole(both, {("trades", p) for p in scope}, request, losses)
    assert found == {("trades", p) for p in expected}


@pytest.mark.parametrize(
    ("asked", "command"),
    [
        (Request(target=EARLIEST), "--to-earliest"),
        (Request(target=EARLIEST, stop=True), "--to-earliest --stop"),
        (
            Request(
                target=EARLIEST, inputs={"trades": (0,)}, state="clear", output="truncate",
                max_records_per_batch=10, stay_stopped=True, force=True,
            ),
            "--to-earliest --state clear --output truncate --input-topics trades:0 "
            "--max-records-per-batch 10 --stay-stopped --force",
        ),
    ],
)  # fmt: skip
def test_one_that_would_read_less_names_itself_with_what_accepts_that(
    monkeypatch: pytest.MonkeyPatch, asked: Request, command: str
) -> None:
    """`a.v1` is live and has read 5,000 records; of these Kafka no longer has the first 1,000."""
    read = Progress(
        release="a.v1",
        generation=1,
        token=1,
        boundary=Boundary(batch_id=3, position=SourcePosition(sources={"trades": {0: 5000}})),
        result=ResultPosition(topics={}),
        at_ms=0,
    )
    monkeypatch.setattr("orchestration.operations.reading.newest_progress", lambda *_, **__: read)
    monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_: {})
    start = SourcePosition(sources={"trades": {0: 0}})
    log = Log(Staged(spec=spec("a.v1")), generation("a.v1", start=start), *switched(1, None, "a.v1"))
    now = {"trades": InputNow(first={0: 1000})}
    kafka = Kafka(inputs=now, first={"trades": {0: 1000}}, end={"trades": {0: 6000}})
    with pytest.raises(MissingHistory) as error:
        plan_reset(context_of(log, kafka), "a.v1", asked)
    assert error.value.what == (
        "a.v1 can't read again all the input that its result contains: deleted by retention: trades[0] 0 to 999 (1,000 offsets)"
    )
    assert error.value.fix == (
        f"`switchyard reset a.v1 {command} --missing-history accept --execute` reads the input that is there; "
        "or restore the input from a backup of the brokers, then reset again"
    )
    [typed_command] = re.findall("`switchyard ([^`]+)`", error.value.fix)
    typed.require(typed_command)


def test_the_command_of_a_request_leaves_only_the_file_to_fill_in() -> None:
    target = Target(kind="file", text="--from-file f.csv (1a2b)", offsets={"trades": {0: 3}})
    request = Request(target=target, until=until_of("5500"))
    assert request.command("a.v1") == "switchyard reset a.v1 --from-file FILE --until 5500 --execute"


def test_the_command_of_a_request_waits_as_long_as_was_asked_for() -> None:
    request = Request(target=EARLIEST, timeout_s=43_200.0)
    assert request.command("a.v1") == "switchyard reset a.v1 --to-earliest --timeout 43200s --execute"
