"""Comparisons before a switch, and switches with consumers: at the end, behind, or away for several switches.

The tests are one story on one topic, in this order; operators collide and die in it. v1 is right, v2 is the same,
v3 mistakes bids for asks, v30 is worse.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random

import pytest
from confluent_kafka import ConsumerGroupState

from demo.ledger.check import check_log
from orchestration.operations import journal
from orchestration.operations.comparing.evidence import Comparison, evidence_path
from orchestration.operations.lifecycle import live_release
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.switching import Fence
from orchestration.operations.procedures.check import check
from orchestration.operations.procedures.diff import diff
from pipelines.engine.checkpoint import release_folder
from pipelines.engine.code import code_path
from pipelines.errors import Refused
from pipelines.kafka.client import admin, producer
from pipelines.kafka.progress import progress_history
from pipelines.kafka.topics import topic_names
from pipelines.model.entries import MarkOrdered, Promoted, StateSet, SwitchAborted
from pipelines.model.names import result_topic
from pipelines.model.registry import Operation
from tests.e2e.cluster import LARGE, ROOT, SMALL, Cluster, Follower, assert_nothing_differs, folded
from tests.shared.operators import SEED, Death
from tests.shared.terminal import Said

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark]

APP, GOOD, SAME, OTHER, BAD = "stock-stats", "stock-stats.v1", "stock-stats.v2", "stock-stats.v3", "stock-stats.v30"
HISTORY = 6_000
# the story may take longer than evidence stays valid by default
PROMOTE = ("promote", OTHER, "--max-evidence-age", "2h")


@dataclass
class Story:
    """What all tests of this module share."""

    cluster: Cluster
    tail: Follower
    behind: Follower
    away: Follower
    input: ExitStack
    first_plan: Plan | None = None
    compared: Comparison | None = None

    @property
    def live(self) -> str:
        release = live_release(self.cluster.state, APP)
        assert release is not None
        return release.name

    @property
    def switches(self) -> int:
        return len(self.cluster.state.chains[APP])

    def cli(self, *arguments: object, **environment: str) -> Said:
        return self.cluster.cli(*arguments, **environment)

    def switch(self, *command: str) -> None:
        """A switch at the terminal. It is over once the follower at the end has a record of the other result."""
        number = self.switches + 1
        said = self.cli(*command, "--execute")
        assert said.code == 0, said.text
        assert self.switches == number
        self.tail.await_switch(number)

    @property
    def newest(self) -> Operation:
        """The operation on the app that was opened last."""
        return [o for o in self.cluster.state.operations.values() if o.opened.alias == APP][-1]

    def killed_at_the_mark(self, *command: str, **environment: str) -> Operation:
        """An operation whose operator is killed as soon as the mark is ordered."""
        said = self.cluster.operators.start(*command, "--execute", death=Death(entry=MarkOrdered), **environment).end()
        assert said.code == -signal.SIGKILL, said.text
        operations = self.cluster.state.operations.values()
        [found] = [o for o in operations if o.opened.alias == APP and not o.resolved]
        assert found.mark
        return found

    def flagged(self, operation: Operation) -> dict[int, int]:
        """Waits for the live driver's barrier of `operation`: partition -> offset where consumers must wait."""
        context, live = self.cluster.context(), self.live

        def barrier() -> dict[int, int] | None:
            mark = progress.barrier if (progress := context.progress(live)) else None
            return dict(mark.result.of(f"{live}.g1")) if mark and mark.op == operation.id else None

        self.cluster.until(f"{live} has not flagged the barrier", barrier)
        found = barrier()
        assert found is not None
        return found

    def goes_on_past(self, barrier: dict[int, int], operation: Operation) -> None:
        """Waits until the follower at the end is past the barrier. It must have waited there for the abort."""
        topic = f"{self.live}.g1"

        def past() -> list[int]:
            return [
                x["at_ms"] for x in self.tail.lines() if x["topic"] == topic and x["offset"] >= barrier[x["partition"]]
            ]

        self.cluster.until("the follower has not gone on", past)
        entries = self.cluster.registry.history()
        aborted_ms = next(e.at_ms for e in entries if isinstance(e, SwitchAborted) and e.id == operation.id)
        assert min(past()) >= aborted_ms


@pytest.fixture(scope="module")
def good(cluster: Cluster) -> Cluster:
    """The cluster with a minute of trades, and v1 live with small batches."""
    cluster.load(APP, HISTORY, per_second=100)
    cluster.hydrate(APP, 1, batch=SMALL)
    cluster.make_live(APP, 1)
    return cluster


@pytest.fixture(scope="module")
def same(good: Cluster) -> Cluster:
    """The unchanged code of v1 as v2, with large batches."""
    good.hydrate(APP, 2, batch=LARGE, correction="the same again, in large batches")
    return good


@pytest.fixture(scope="module")
def story(good: Cluster) -> Iterator[Story]:
    if SAME in good.state.releases:
        good.stop(SAME)
    tail, behind, away = (Follower(good, APP, group) for group in ("tail", "behind", "away"))
    with ExitStack() as ends, ExitStack() as live_input:
        live_input.enter_context(good.producing(APP, 100, per_second=100))
        for follower in (tail, behind, away):
            ends.enter_context(follower)
        yield Story(good, tail, behind, away, live_input)


def test_unchanged_code_of_a_table_does_not_differ_while_input_arrives(same: Cluster) -> None:
    both = (GOOD, SAME)
    for name in both:
        # what the plan of the next version says about its time
        ready = same.state.releases[name].ready
        assert ready is not None and ready.facts["records_per_s"] > 0
    before = same.position(GOOD)["trades"]
    with same.producing(APP, 100, per_second=100):
        same.until("v1 has read nothing new", lambda: same.position(GOOD)["trades"] != before)
        found = diff(same.context(), SAME)
        assert_nothing_differs(found, at_least=500)
        cut = same.state.evidence[-1].cut.sources["trades"]
        assert sum(cut.values()) > sum(before.values())
        # both continue from there
        for name in both:
            same.until(
                f"{name} has stood still since",
                lambda name=name: sum(same.position(name)["trades"].values()) > sum(cut.values()) + 400,
            )
    largest = {name: max(p.batch.rows_in for p in progress_history(same.settings, name)) for name in both}
    assert largest[GOOD] <= SMALL < largest[SAME]


def test_an_idle_input_is_compared_too(same: Cluster) -> None:
    for name in (GOOD, SAME):
        same.settle(name, "trades")
    end = same.position(GOOD)["trades"]
    assert_nothing_differs(diff(same.context(), SAME), at_least=500)
    assert same.state.evidence[-1].cut.sources["trades"] == end


def test_the_gate_refuses_a_bad_version(story: Story) -> None:
    said = story.cli(
        "reprocess", APP, "--version", 30, "--from", ROOT / "demo" / "v3", "--for", "200ms", "--auto-promote", "--execute"
    )  # fmt: skip
    assert said.code == 3, said.text
    assert "stock-stats.v30 failed its checks" in said.err
    assert "lowest_ask" in said.err or "average" in said.err
    assert "`switchyard reprocess stock-stats [--from FOLDER] --execute`" in said.err
    # with everything that was found about it
    assert "changed" in said.out and "errored" in said.out
    assert story.live == GOOD and story.switches == 1
    verdict = story.cluster.state.releases[BAD].verdict
    assert verdict is not None and verdict.failed
    # nor when started by hand
    said = story.cli("promote", BAD, "--execute")
    assert said.code == 3 and "the checks failed" in said.err
    story.cluster.stop(BAD)
    said = story.cli("promote", BAD)
    assert said.code == 3 and "it isn't running" in said.err and "the checks failed" in said.err


def test_a_promotion_needs_a_ready_release_with_a_recent_diff_and_check(story: Story) -> None:
    cluster = story.cluster
    if OTHER not in cluster.state.releases:
        cluster.stage(APP, 3, code_dir=ROOT / "demo" / "v1")
        with pytest.raises(Refused, match=r"hasn't caught up.*isn't running.*is not checked.*is not compared"):
            plan_promote(cluster.context(), OTHER)
    cluster.hydrate(APP, 3, batch=LARGE, code_dir=ROOT / "demo" / "v1")
    story.compared = found = diff(cluster.context(), OTHER, samples=5)
    assert found.changed > 0
    with pytest.raises(Refused, match="is not checked"):
        plan_promote(cluster.context(), OTHER)
    assert check(cluster.context(), OTHER).ok
    with pytest.raises(Refused, match="more than --max-evidence-age 0"):
        plan_promote(cluster.context(), OTHER, max_evidence_age_s=0)
    with pytest.raises(Refused, match="of the keys differ, more than --max-changed"):
        plan_promote(cluster.context(), OTHER, max_changed=found.ratio / 2)
    before = cluster.world()
    said = story.cli("promote", OTHER)
    assert said.code == 0, said.text
    assert "nothing is changed; add --execute" in said.out and "switchyard rollback stock-stats" in said.out
    assert cluster.world() == before
    story.first_plan = plan_promote(cluster.context(), OTHER)


def test_a_diff_finds_exactly_the_changed_keys(story: Story) -> None:
    cluster = story.cluster
    if story.compared is None:
        cluster.hydrate(APP, 3, batch=LARGE, code_dir=ROOT / "demo" / "v1")
        story.compared = diff(cluster.context(), OTHER, samples=5)
    found, cut = story.compared, cluster.state.evidence[-1]
    live = folded(cluster.settings, (topic := result_topic(GOOD, 1)), cut.live_result.of(topic))
    new = folded(cluster.settings, (topic := result_topic(OTHER, 1)), cut.new_result.of(topic))
    both = live.keys() & new.keys()
    changed = {key for key in both if live[key] != new[key]}
    assert changed
    assert found.only_live == len(live.keys() - new.keys())
    assert found.only_new == len(new.keys() - live.keys())
    assert found.changed == len(changed)
    assert found.identical == len(both) - len(changed)
    columns = {c: sum(live[k][c] != new[k][c] for k in both) for c in ("lowest_ask", "trades", "average_ask")}
    assert found.columns == {name: count for name, count in columns.items() if count}
    assert len(found.samples) == 5
    for sample in found.samples:
        assert sample["live"] != sample["new"]
    # both releases read the same input, so they differ only by the bids
    assert sum(v["trades"] for v in new.values()) > sum(v["trades"] for v in live.values())


def test_promote_and_roll_back_with_a_follower_at_the_tail_and_one_behind(story: Story) -> None:
    for follower in (story.tail, story.behind, story.away):
        follower.await_switch(1)
    story.behind.stop()
    story.away.stop()
    story.switch(*PROMOTE)
    assert story.live == OTHER
    # the live one flagged the barrier in passing: it neither paused for the other nor ran a batch to meet it
    known = progress_history(story.cluster.settings, GOOD)
    marks = {name: {m.op for p in known if (m := getattr(p, name))} for name in ("barrier", "paused", "aligned")}
    [operation] = [
        o.id for o in story.cluster.state.operations.values()
        if o.promoted and (o.promoted.alias, o.promoted.switch.number) == (APP, 2)
    ]  # fmt: skip
    assert operation in marks["barrier"]
    assert operation not in marks["paused"] | marks["aligned"]
    story.behind.start()
    refreshed = story.cli("refresh", APP)
    assert refreshed.code == 0 and f"of {GOOD} and {OTHER} is up to date" in refreshed.out, refreshed.text
    planned = story.cli("rollback", APP)
    assert "keys from the last refresh" in planned.out, planned.text
    story.switch("rollback", APP)
    assert story.live == GOOD
    story.behind.await_switch(3)


def test_a_plan_made_before_another_switch_is_refused_and_stops_nobody(story: Story) -> None:
    assert story.first_plan is not None
    operations = set(story.cluster.state.operations)
    with pytest.raises(Refused, match=r"has changed since the plan was made: switch 3 made stock-stats\.v1 live"):
        story.cluster.run(story.first_plan)
    assert set(story.cluster.state.operations) == operations


def test_the_second_of_two_promotions_is_refused_and_names_the_first(story: Story) -> None:
    number = story.switches + 1
    # the first has begun and waits: the switch must not be over before the second one is refused
    first = story.cluster.operators.start(*PROMOTE, "--execute")
    story.cluster.until("the first has not begun", lambda: story.cluster.state.blocking(OTHER), poll_s=0.01)
    os.kill(first.process.pid, signal.SIGSTOP)
    try:
        lost = story.cluster.operators.start(*PROMOTE, "--execute").end()
    finally:
        os.kill(first.process.pid, signal.SIGCONT)
    won = first.end()
    assert (won.code, lost.code) == (0, 3), won.text + lost.text
    assert "is under way on stock-stats.v" in lost.err, lost.err
    assert len(lost.err.strip().splitlines()) >= 2
    assert story.switches == number
    story.tail.await_switch(number)


def test_an_operation_is_resumed_for_an_operator_who_died(story: Story) -> None:
    number = story.switches + 1
    operation = story.killed_at_the_mark("rollback", APP, SWITCHYARD_SWITCH_TIMEOUT_S="250")
    listed = story.cli("operations")
    assert operation.id in listed.out and GOOD in listed.out
    said = story.cli("rollback", APP, "--execute")
    assert said.code == 3
    assert f"{operation.id}, which " in said.err and f"switchyard resume {operation.id}" in said.err
    said = story.cli("resume", operation.id)
    assert said.code == 0, said.text
    assert story.live == GOOD and story.switches == number
    story.tail.await_switch(number)
    again = story.cli("resume", operation.id)
    assert again.code == 3 and "is over: done" in again.err


def test_a_switch_is_not_made_again_for_an_operator_who_died_after_it(story: Story) -> None:
    for command, live in ((PROMOTE, OTHER), (("rollback", APP), GOOD)):
        number = story.switches + 1
        dead = story.cluster.operators.start(*command, "--execute", death=Death(entry=Promoted)).end()
        assert dead.code == -signal.SIGKILL, dead.text
        operation = story.newest
        assert operation.promoted is not None and operation.closed is None
        said = story.cli("resume", operation.id)
        assert said.code == 0, said.text
        assert story.newest.closed is not None and story.newest.closed.outcome == "done"
        assert story.live == live and story.switches == number
        story.tail.await_switch(number)


@pytest.mark.long
def test_operators_of_switches_may_be_killed_anywhere(story: Story) -> None:
    """There and back, three times: each operator is killed at some line, and the next one resumes its operation."""
    random, killed = Random(SEED), 0
    # without the usual tests before it, it is not there yet
    story.cluster.hydrate(APP, 3, batch=LARGE, code_dir=ROOT / "demo" / "v1")
    diff(story.cluster.context(), OTHER)
    check(story.cluster.context(), OTHER)
    for command, live in ((PROMOTE, OTHER), (("rollback", APP), GOOD)) * 3:
        number, line = story.switches + 1, random.randint(1, 1000)
        dead = story.cluster.operators.start(
            *command, "--execute", death=Death(line=line), SWITCHYARD_SWITCH_TIMEOUT_S="250"
        ).end()
        if story.newest.closed is None:
            assert dead.code == -signal.SIGKILL, f"to be killed at line {line}: {dead.text}"
            killed += 1
            said = story.cli("resume", story.newest.id)
            assert said.code == 0, f"killed at line {line}: {said.text}"
        assert story.live == live and story.switches == number, f"killed at line {line}"
        story.tail.await_switch(number)
    assert killed >= 3


def test_consumers_continue_when_an_operation_is_abandoned(story: Story) -> None:
    number = story.switches
    operation = story.killed_at_the_mark(*PROMOTE)
    barrier = story.flagged(operation)
    said = story.cli("abandon", operation.id, "--reason", "its operator is gone")
    assert said.code == 0, said.text
    story.goes_on_past(barrier, operation)
    assert story.live == GOOD and story.switches == number
    assert "no operation is under way" in story.cli("operations").out


def test_consumers_continue_when_a_switch_is_aborted(story: Story) -> None:
    number = story.switches
    operation = story.killed_at_the_mark(*PROMOTE)
    barrier = story.flagged(operation)
    planned = story.cli("abort", APP)
    assert planned.code == 0 and operation.id in planned.out and "nothing is changed" in planned.out
    assert not story.cluster.state.operations[operation.id].resolved
    said = story.cli("abort", APP, "--reason", "not tonight", "--execute")
    assert said.code == 0, said.text
    story.goes_on_past(barrier, operation)
    assert story.live == GOOD and story.switches == number
    again = story.cli("abort", APP, "--execute")
    assert again.code == 3 and "no switch of stock-stats is under way" in again.err


def test_consumers_continue_after_the_deadline_without_an_operator(story: Story) -> None:
    number = story.switches
    operation = story.killed_at_the_mark(*PROMOTE, SWITCHYARD_SWITCH_TIMEOUT_S="3")
    barrier = story.flagged(operation)
    # any command, or the supervisor, writes what the deadline demands
    story.cluster.until(
        "the switch has not been aborted",
        lambda: journal.expire(story.cluster.registry).operations[operation.id].aborted,
        poll_s=0.5,
    )
    story.goes_on_past(barrier, operation)
    assert story.switches == number
    said = story.cli("resume", operation.id)
    assert said.code == 3 and "aborted" in said.err
    # it ended the operation, so the next one is not blocked
    story.switch(*PROMOTE)


def test_a_stuck_live_release_is_fenced_and_its_table_stays_exact(story: Story) -> None:
    cluster = story.cluster
    assert cluster.drivers.alive(OTHER)
    planned = story.cli("rollback", APP, "--fence")
    assert planned.code == 0 and "is dead or stuck, so this plan fences it" in " ".join(planned.out.split()), (
        planned.text
    )
    story.switch("rollback", APP, "--fence")
    assert story.live == GOOD
    # it has seen that it is wanted stopped and that another driver has the lease
    cluster.until("the fenced driver runs on", lambda: not cluster.drivers.alive(OTHER))
    cluster.start(OTHER, batch=LARGE)


def is_fenced_by_a_rollback(cluster: Cluster) -> bool:
    """Whether a rollback now would fence the live release as a dead one."""
    try:
        plan = plan_rollback(cluster.context(), APP)
    except Refused:
        return False
    return any(isinstance(stage, Fence) for stage in plan.stages)


@pytest.mark.long
def test_a_rollback_from_a_release_that_died_is_exact_for_a_table(story: Story) -> None:
    cluster = story.cluster
    cluster.hydrate(APP, 3, batch=LARGE, code_dir=ROOT / "demo" / "v1")
    # a process, to be killed
    cluster.stop(OTHER)
    cluster.drivers.processes.add(OTHER)
    cluster.start(OTHER, batch=LARGE)
    # approves what a reprocess proposed
    said = story.cli("reprocess", APP, "--version", 3, "--unread", 1_000, "--for", "200ms", "--execute")
    assert said.code == 0, said.text
    assert story.live == GOOD
    [plan] = set(re.findall(r"switchyard approve (promote-\S+) --execute", said.out))
    story.switch("approve", plan)
    assert story.live == OTHER and cluster.state.operations[plan].promoted
    again = story.cli("approve", plan, "--execute")
    assert again.code == 3 and "was already approved" in again.err
    # the plan says what is kept, although nobody meets the dead release
    kept = story.cli("refresh", APP)
    assert kept.code == 0, kept.text
    lease = cluster.state.releases[OTHER].lease
    assert lease is not None and lease.holder.pid != os.getpid()
    os.kill(lease.holder.pid, signal.SIGKILL)
    cluster.drivers.processes.discard(OTHER)
    before = cluster.world()
    cluster.until("its death goes unnoticed", lambda: is_fenced_by_a_rollback(cluster))
    said = story.cli("rollback", APP)
    assert "dead or stuck" in said.out, said.out
    assert "the delta makes the table exact" in said.out or "exactly where it ended" in said.out, said.out
    # nor does what it said while it lived make it ready
    assert story.cli("wait", OTHER, "--unread", 1_000_000, "--for", "1s", "--timeout", "4s").code == 1
    assert cluster.world() == before
    story.switch("rollback", APP)
    assert story.live == GOOD
    # it is a standby that is wanted stopped; a start resumes it where it was fenced
    fenced = cluster.position(OTHER)
    assert cluster.state.releases[OTHER].wanted == "stopped"
    cluster.start(OTHER, batch=LARGE)
    cluster.until("it has not gone on", lambda: cluster.position(OTHER) != fenced)


@pytest.mark.long
def test_a_watched_promotion_rolls_back_when_a_check_fails(story: Story) -> None:
    cluster, number = story.cluster, story.switches
    progress = cluster.context().progress(GOOD)
    assert progress is not None and progress.boundary.watermark_ms is not None
    # not late, and below any real price: the live release's suite finds it once consumers are there
    client = producer(cluster.settings)
    value = json.dumps({"side": "ask", "price": -1.0})
    client.produce("trades", value, "AAPL", timestamp=progress.boundary.watermark_ms + 8_000)
    assert client.flush(10) == 0
    said = story.cli(*PROMOTE, "--watch", "60s", "--execute")
    assert said.code == 1, said.text
    assert "stock-stats.v3 failed its checks and was rolled back: " in said.out and "lowest_ask" in said.out
    assert story.live == GOOD and story.switches == number + 2
    story.tail.await_switch(number + 2)


def test_a_release_is_not_retired_while_someone_needs_it(story: Story) -> None:
    before = story.cluster.world()
    live = story.cli("retire", GOOD, "--after", "0s", "--execute")
    assert live.code == 3 and "is live" in live.err and "switchyard rollback" in live.err
    needed = story.cli("retire", OTHER, "--after", "0s", "--execute")
    assert needed.code == 3 and "still needed by" in needed.err and "follower away" in needed.err
    assert "forget-follower" in needed.err
    assert story.cluster.world() == before


# at the end of the story, and of what the long tests make of it
@pytest.mark.parametrize("_", ["", pytest.param("long", marks=pytest.mark.long)])
def test_every_follower_got_every_result_once(story: Story, _: str) -> None:
    story.away.start()
    story.away.await_switch(story.switches)
    story.input.close()
    story.cluster.settle(GOOD, "trades")
    for follower in (story.tail, story.behind, story.away):
        follower.await_end(GOOD)
        follower.stop()
        ledger = check_log(APP, story.cluster.settings.bootstrap, follower.log)
        assert ledger.clean, f"{follower.group}: {ledger.as_json()}"
        assert ledger.input_records > HISTORY
        numbers = {line["switch"] for line in follower.lines()}
        assert {1, story.switches} <= numbers
    assert set(range(1, story.switches + 1)) == {line["switch"] for line in story.tail.lines()}


def test_a_rollback_to_a_standby_that_is_stopped_is_refused_with_the_way_out(story: Story) -> None:
    story.cluster.stop(OTHER)
    said = story.cli("rollback", APP, "--execute")
    assert said.code == 3
    assert "stock-stats.v3 isn't running" in said.err and "switchyard start stock-stats.v3 --execute" in said.err


def test_a_retire_deletes_its_release_and_nothing_of_a_similar_name(story: Story) -> None:
    cluster = story.cluster
    settings = cluster.settings
    digest = cluster.state.releases[OTHER].spec.code_digest
    deltas = {e.forward.topic for e in cluster.state.evidence if e.forward and OTHER in (e.live, e.new)}
    folds = [evidence_path(settings, e.id) for e in cluster.state.evidence if OTHER in (e.live, e.new)]
    assert folds and all(fold.exists() for fold in folds)
    mine = {"stock-stats.v3.g1", "stock-stats.v3.progress", "stock-stats.v3.dead-letters"} | deltas
    namesakes = {"stock-stats.v30.g1", "stock-stats.v30.progress", "stock-stats.v30.dead-letters"}
    assert deltas and mine | namesakes <= topic_names(settings)
    # of a release that is over, the next operator deletes what the first one has left
    retire = ("retire", OTHER, "--after", "0s", "--execute")
    dead = story.cluster.operators.start(*retire, death=Death(entry=StateSet)).end()
    assert dead.code == -signal.SIGKILL and mine <= topic_names(settings), dead.text
    [retirement] = [o for o in cluster.state.operations.values() if o.opened.name == "retire" and o.closed is None]
    said = story.cli("resume", retirement.id)
    assert said.code == 0, said.text
    left = topic_names(settings)
    assert not mine & left
    assert namesakes <= left
    client = admin(settings)
    groups = {g.group_id: g.state for g in client.list_consumer_groups().result().valid}
    assert OTHER not in groups and groups[BAD] == ConsumerGroupState.EMPTY
    assert not any(fold.parent.exists() for fold in folds)
    assert not release_folder(settings, OTHER).exists() and release_folder(settings, BAD).exists()
    assert not code_path(settings, digest).exists()
    assert code_path(settings, cluster.state.releases[BAD].spec.code_digest).exists()
    for command, word in (("promote", "retired"), ("start", "retired"), ("retire", "nothing is left to do")):
        said = story.cli(command, OTHER, "--execute")
        assert said.code == 3 and word in said.err


def test_the_log_says_who_did_what_and_why(story: Story) -> None:
    said = story.cli("log", APP, "--limit", 500)
    assert said.code == 0
    # where a cell is wrapped depends on the widest cells, such as the process id of a driver
    lines = [line.split("│") for line in said.out.splitlines() if "│" in line]
    columns = [" ".join(" ".join(cells).split()) for cells in zip(*lines, strict=True)]
    for words in (
        "staged stock-stats.v3 (code)",
        "switch 2 of stock-stats: stock-stats.v1 -> stock-stats.v3",
        "switch 3 of stock-stats: stock-stats.v3 -> stock-stats.v1",
        "compared stock-stats.v3 with stock-stats.v1",
        "its operator is gone",
        "deadline passed",
        "stock-stats.v3 is now retired",
    ):
        assert any(words in column for column in columns), said.out
    only = story.cli("log", BAD, "--limit", 500)
    assert "stock-stats.v30" in only.out and "staged stock-stats.v3 " not in only.out
