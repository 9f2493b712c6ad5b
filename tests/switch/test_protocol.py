"""A search of the whole switch protocol by a rule-based state machine, and proof that it finds planted defects."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pipelines.follow import moves
from pipelines.model import switch as rules
from pipelines.model.switch import Met, Run
from tests.switch.readers import Follower
from tests.switch.rules import ALIAS, Broken, Kind, Rules, differences
from tests.switch.world import World, planted

# PROTOCOL_SEARCH_EXAMPLES=20000 searches for long
EXAMPLES = int(os.environ.get("PROTOCOL_SEARCH_EXAMPLES", "0"))
VERSIONS = 3
MOST_SWITCHES = 6

version = st.integers(1, VERSIONS)
few = st.integers(0, 4)
# (key, milliseconds of event time since the record before)
records = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=12)
history = [(0, 0), (1, 2), (3, 3), (2, 4), (0, 4), (3, 4), (1, 4), (0, 4)]


class Protocol(RuleBasedStateMachine):
    """A state machine over a fresh world of results of that kind, under these rules."""

    def __init__(self, kind: Kind, rules_: Rules) -> None:
        super().__init__()
        self.world = World(kind, rules_, VERSIONS)
        self.world.followers.append(Follower(self.world, count=1, earliest=True))

        for number, record in enumerate(history):
            self.world.source.append(number % 2, *record)
        for driver in self.world.drivers.values():
            driver.turn({0: 100, 1: 100}, None)

    @rule(records=records)
    def produce(self, records: list[tuple[int, int]]) -> None:
        for number, record in enumerate(records):
            self.world.source.append(number % 2, *record)

    @rule(turns=st.lists(st.tuples(version, few, few, st.integers(0, 5)), min_size=1, max_size=5))
    def drive(self, turns: list[tuple[int, int, int, int]]) -> None:
        """Drivers take turns; some don't see news, some crash in a batch."""
        for number, a, b, luck in turns:
            driver = self.world.drivers[f"{ALIAS}.v{number}"]
            if luck != 1:
                driver.look()
            driver.turn({0: a, 1: b}, {4: "planned", 5: "produced"}.get(luck))  # type: ignore[arg-type]

    @precondition(lambda self: len(self.world.chain) < MOST_SWITCHES)
    @rule(
        turn=st.integers(0, 1),
        who=st.integers(0, 1),
        steps=st.integers(1, 12),
        reuse=st.booleans(),
        slow_ms=st.sampled_from([0, 3]),
        tail=st.sampled_from(["no", "yes", "sees no registry"]),
        every=st.sampled_from([1, 1, 4]),
        slow=st.booleans(),
        ahead=st.integers(0, 9),
        input_=records,
    )
    def part_of_a_switch(
        self,
        turn: int,
        who: int,
        steps: int,
        reuse: bool,
        slow_ms: int,
        tail: str,
        every: int,
        slow: bool,
        ahead: int,
        input_: list[tuple[int, int]],
    ) -> None:
        """An operator and the drivers go on for some steps, under load or idle; with `tail`, a follower, too.

        `slow`: a batch is planned in one step and ends in the next. The operator acts in each `every`th step, and from step
        `ahead` on writes of the delta what there is.
        """
        world = self.world
        for step in range(steps):
            world.now_ms += slow_ms
            if step < len(input_):
                world.source.append(step % 2, *input_[step])
            if step % every == 0:
                world.operate(world.operators[who], world.candidate(turn), reuse)
            if step >= ahead:
                world.write_ahead(world.operators[who])
            for driver in world.drivers.values():
                driver.look()
                driver.turn({0: 2, 1: 2}, "planned" if slow and step % 2 == 0 else None)
            if tail != "no":
                reader = world.followers[0].members[0]
                reader.look(tail == "yes", True)
                reader.read(1000)
                reader.commit()

    @rule(turn=st.integers(0, 1), who=st.integers(0, 1), reuse=st.booleans())
    def operate(self, turn: int, who: int, reuse: bool) -> None:
        self.world.operate(self.world.operators[who], self.world.candidate(turn), reuse)

    @precondition(lambda self: any(o.closed is None for o in self.world.state.operations.values()))
    @rule()
    def overdue(self) -> None:
        self.world.overdue()

    @rule(who=st.integers(0, 1))
    def operator_gone(self, who: int) -> None:
        self.world.operators[who].leave()

    @precondition(lambda self: len(self.world.followers) < 4)
    @rule(count=st.integers(1, 2), earliest=st.booleans())
    def follower_comes(self, count: int, earliest: bool) -> None:
        self.world.followers.append(Follower(self.world, count, earliest))

    @rule(
        which=st.integers(0, 3),
        who=st.integers(0, 1),
        registry=st.booleans(),
        progress=st.booleans(),
        slots=st.sampled_from([1, 2, 5, 1000]),
        end=st.sampled_from(["", "commit", "commit", "crash"]),
    )
    def follow(self, which: int, who: int, registry: bool, progress: bool, slots: int, end: str) -> None:
        """A member of a follower reads on; it need not see news of the registry and of progress alike."""
        follower = self.world.followers[which % len(self.world.followers)]
        reader = follower.members[who % follower.count]
        reader.look(registry, progress)
        reader.read(slots)
        if end:
            reader.commit() if end == "commit" else reader.crash()

    @invariant()
    def laws(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.settle()
        self.world.check_settled()


def search(kind: Kind, rules_: Rules, examples: int, phases: tuple[Phase, ...] = (Phase.generate,)) -> None:
    run_state_machine_as_test(
        # Hypothesis only calls it
        cast(Any, lambda: Protocol(kind, rules_)),
        settings=settings(
            max_examples=EXAMPLES or examples,
            stateful_step_count=25,
            derandomize=not EXAMPLES,
            database=None,
            phases=(*phases, Phase.shrink) if EXAMPLES else phases,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stream", "table"])
def test_no_history_breaks_a_law(kind: Kind) -> None:
    search(kind, Rules(), examples=100)


# -- planted defects ---------------------------------------------------------------------------------------------------


def flagged_one_batch_early(order: Any, previous: Any, boundary: Any, already: Any) -> bool:
    return (already is None or already.op != order.id) and boundary.position.dominates(order.past)


def aligned_in_one_step(order: Any, mine: Any, theirs: Any, word: Any) -> Any:
    mark = theirs.barrier if theirs else None
    paused = mine is not None and mine.paused is not None and order is not None and mine.paused.op == order.id
    if paused and mark and mark.op == order.id and not (mine.aligned and mine.aligned.op == order.id):
        if mine.boundary.position == mark.boundary.position:
            return Met(mark)
        return Run(mark, (rules.Step(mark.boundary.position),))
    return rules.candidate_move(order, mine, theirs, word)


def no_empty_batch(order: Any, mine: Any, theirs: Any, word: Any) -> Any:
    move = rules.candidate_move(order, mine, theirs)
    return Met(theirs.barrier) if isinstance(move, Run) and theirs.barrier and move.steps[0].no_data else move


def foresees_without_the_batch_before(order: Any, boundary: Any, already: Any) -> Any:
    word = rules.foreseen(order, boundary, already)
    at_once = boundary.model_copy(update={"previous": boundary.position})
    return word and word.model_copy(update={"boundary": at_once})


def goes_past_the_barrier(position: Any, chain: Any, progress: Any, operations: Any, **group: Any) -> Any:
    blind = progress and progress.model_copy(update={"barrier": None})
    return moves.next_move(position, chain, blind, operations, **group)


def takes_unknown_for_resolved(position: Any, chain: Any, progress: Any, operations: Any, **group: Any) -> Any:
    if progress and progress.barrier and progress.barrier.op not in operations:
        progress = progress.model_copy(update={"barrier": None})
    return moves.next_move(position, chain, progress, operations, **group)


def does_not_wait_for_members(*args: Any, member: Any, commits: Any) -> Any:
    move = moves.next_move(*args, member=member, commits=commits)
    if move == moves.Wait("members"):
        position, chain = args[:2]
        return moves.Enter(moves.after(position, chain[position.number], member))
    return move


def without_tombstones(old: Any, new: Any) -> Any:
    return {k: v for k, v in differences(old, new).items() if v is not None}


def promotes_what_was_aborted(state: Any, alias: str, op: str, switch: Any) -> Any:
    operation = state.operations[op]
    fresh = {**state.operations, op: replace(operation, aborted=False, closed=None)}
    return rules.promotion(replace(state, operations=fresh), alias, op, switch)


def promotes_over_another(state: Any, alias: str, op: str, switch: Any) -> Any:
    return [rules.Promoted(alias=alias, switch=switch, op=op)]


DEFECTS: list[tuple[Kind, str, dict[str, Callable[..., Any] | int]]] = [
    ("stream", "flagged one batch early", {"flags": flagged_one_batch_early}),
    ("stream", "forgets the batch under way when it says where it will pause", {"pauses_by": lambda at, planned: at}),
    ("stream", "aligned in one step", {"candidate_move": aligned_in_one_step}),
    ("stream", "foresees a boundary without the batch before it", {"foreseen": foresees_without_the_batch_before}),
    ("stream", "no-data batch not reproduced", {"candidate_move": no_empty_batch}),
    ("stream", "passes the barrier", {"next_move": goes_past_the_barrier}),
    ("stream", "passes the barrier by its own clock", {"follower_patience_ms": 5}),
    ("stream", "a barrier unknown to the registry as read is passed", {"next_move": takes_unknown_for_resolved}),
    ("table", "a member enters the new result alone", {"next_move": does_not_wait_for_members}),
    ("table", "a delta without tombstones", {"changes": without_tombstones}),
    ("table", "no touch-ups", {"touch_ups": lambda touched, new, ahead: {}}),
    ("table", "touch-ups only of keys that the new result has",
     {"touch_ups": lambda touched, new, ahead: {k: new[k] for k in touched if k in new and ahead.get(k) != new[k]}}),
    ("table", "what was written ahead is not corrected",
     {"touch_ups": lambda touched, new, ahead: {k: new.get(k) for k in touched if k not in ahead}}),
    ("table", "what was read past the cut counts as written ahead", {"holds_ahead": lambda read, cut: True}),
    ("table", "a touched key delivered again from the evidence", {"earlier_segments": lambda *a: []}),
    ("stream", "aborted, then promoted", {"promotion": promotes_what_was_aborted}),
    ("stream", "promoted twice", {"promotion": promotes_over_another}),
]  # fmt: skip


# the search takes most of a minute to find these two, a few seconds at most for each of the others
RARE = ("what was read past the cut counts as written ahead",
        "forgets the batch under way when it says where it will pause")  # fmt: skip
PLANTED = [pytest.param(k, c, id=name, marks=[pytest.mark.long] if name in RARE else []) for k, name, c in DEFECTS]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "changes"), PLANTED)
def test_the_search_finds(kind: Kind, changes: dict[str, Any]) -> None:
    with pytest.raises(Broken):
        search(kind, planted(**changes), examples=5000)
