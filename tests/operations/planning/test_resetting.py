"""What a reset moves, what it must read completely, and what its plan says of it. No broker, no Spark."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.operations.looking.costs import Cost
from orchestration.operations.planning.reset.decision import Reset
from orchestration.operations.planning.reset.export import by_topic
from orchestration.operations.planning.reset.positions import read_whole, scope_of, where_to
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.show import cost_facts, warnings_of
from orchestration.operations.plans.positions import until_of
from pipelines.errors import BadUsage, Refused
from pipelines.model.parts import Loss
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import RegistryState
from pipelines.model.reset import Choice, Seen, Target
from tests.operations.builders import Log, context_of, release

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
