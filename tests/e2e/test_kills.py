"""Kills drivers at random moments in the middle of a transaction, and checks the ledger afterwards.

Live and candidate drivers are killed while they hydrate, run and switch: 8 times by default. `SWITCHYARD_KILLS` is
the number of kills in each test, `SWITCHYARD_KILLS_SEED` seeds the moments. A kill counts only if the dead driver left
a transaction open in Kafka.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from demo.ledger import Ledger, check_log, check_result
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.plans.plan import Plan
from orchestration.operations.procedures.diff import diff
from orchestration.operations.procedures.wait import wait_ready
from orchestration.sources import Options, produce, sources_for
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.client import admin
from pipelines.kafka.progress import newest_progress
from pipelines.model.names import progress_topic, result_topic
from pipelines.settings import Settings
from tests.conftest import sweep
from tests.e2e.harness import (
    SMALL,
    Drivers,
    Follower,
    at_rest,
    code_without_suite,
    lag_records,
    open_transactions,
    operator,
    producing,
    stage,
    start,
    stop,
    topics_of,
    uncommitted,
)
from tests.shared.threads import trials_in
from tests.shared.waiting import Deadline, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark]

SEED = int(os.environ.get("SWITCHYARD_KILLS_SEED", "1"))
KILLS = os.environ.get("SWITCHYARD_KILLS")
BATCH_RECORDS = 4_000
# the longest time from a kill to the next commit: a boot beside another one on two cores
RECOVERY_TIMEOUT_S = 300.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings(running_broker: Settings) -> Iterator[Settings]:
    # with shorter pauses, the batches of two drivers would take all of the CPU time from those that start
    slower = {"trigger_s": 1.0, "max_records_per_batch": BATCH_RECORDS}
    yield running_broker.model_copy(update={**SMALL, **slower})
    sweep(running_broker)


@dataclass(frozen=True)
class Kill:
    """A kill that counts. `left_open`: the topics with the dead driver's open transaction."""

    release: str
    phase: str
    left_open: tuple[str, ...]
    whole_group: bool


@dataclass
class Keeper:
    """Starts one release's driver again when it is dead, as the supervisor does, and measures each recovery."""

    settings: Settings
    drivers: Drivers
    release: str
    errors: list[str] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)
    _killed: tuple[float, int] | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Keeper:
        self._thread = threading.Thread(target=self._run, name=f"keeper of {self.release}")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()

    def rest(self) -> None:
        """Stops starting it; otherwise a stopped driver would run again."""
        self._ended.set()
        self._thread.join()

    @property
    def steady(self) -> bool:
        """Whether the driver has committed since its last kill."""
        return self._killed is None

    def killed(self, token: int) -> None:
        self._killed = (time.monotonic(), token)

    def await_steady(self) -> None:
        until(f"{self.release} does not commit again", lambda: self.steady or self.errors, RECOVERY_TIMEOUT_S)
        assert not self.errors, self.errors

    def _run(self) -> None:
        with operator(self.settings, self.drivers) as context:
            while not self._ended.wait(0.1):
                try:
                    self._turn(context)
                except SwitchyardError as error:
                    self.errors.append(f"{self.release}: {error}")
                    return

    def _turn(self, context: Context) -> None:
        code = self.drivers.of(self.release).poll()
        if code is not None:
            # 3: it was refused the lease, which the killed one seemed to hold
            if code not in (-signal.SIGKILL, 3):
                self.errors.append(f"{self.release} ended by itself with code {code}")
                self._ended.set()
                return
            start(context, self.release)
        if self._killed is not None:
            since, token = self._killed
            progress = newest_progress(self.settings, self.release)
            if progress is not None and progress.token > token:
                self.recoveries_s.append(time.monotonic() - since)
                self._killed = None


class Killer:
    """Kills drivers in the middle of a transaction and counts the kills."""

    def __init__(self, settings: Settings, drivers: Drivers, context: Context, seed: int) -> None:
        self.settings, self.drivers, self.context = settings, drivers, context
        self.random = random.Random(seed)
        self.kills: list[Kill] = []
        self._admin = admin(settings)

    def kill(self, keeper: Keeper, phase: Callable[[], str], *, within_s: float = 30.0, after_s: float = 1.5) -> bool:
        """Kills the driver at the first open transaction after a random moment. Returns whether the kill counts.

        It counts if a transaction was seen within `within_s` and is still open when the driver is dead. `phase` is called after
        that. The driver is frozen for a second look, because the broker may just end the transaction with its commit.
        """
        time.sleep(self.random.uniform(0, after_s))  # a random moment; this waits for nothing
        token = self.context.registry.state().releases[keeper.release].token
        process, topics = self.drivers.of(keeper.release), topics_of(self.context, keeper.release)
        # otherwise its JVM would run on for a moment and could write to the checkpoint
        whole_group = self.random.random() < 0.5
        send = os.killpg if whole_group else os.kill
        # early in a transaction, or between its last record and its commit
        watched = topics if self.random.random() < 0.5 else {progress_topic(keeper.release): 1}
        deadline = time.monotonic() + within_s
        with closing(uncommitted(self.settings, watched)) as records:
            while process.poll() is None and time.monotonic() < deadline:
                if records.poll(0.1) is None:
                    continue
                send(process.pid, signal.SIGSTOP)
                if open_transactions(self.settings, topics, self._admin):
                    send(process.pid, signal.SIGKILL)
                    keeper.killed(token)
                    process.wait(20)
                    left_open = open_transactions(self.settings, topics, self._admin)
                    if left_open:
                        self.kills.append(Kill(keeper.release, phase(), tuple(left_open), whole_group))
                    return bool(left_open)
                send(process.pid, signal.SIGCONT)
        return False

    def count(self, phase: str) -> int:
        return sum(kill.phase == phase for kill in self.kills)

    def table(self, keepers: list[Keeper]) -> str:
        """The kills that count per phase, and the seconds from a kill to the next commit."""
        lines = [f"{'phase':<12}{'kills':>6}  releases"]
        for phase in dict.fromkeys(kill.phase for kill in self.kills):
            of = [kill.release for kill in self.kills if kill.phase == phase]
            lines.append(f"{phase:<12}{len(of):>6}  " + ", ".join(f"{n} x {of.count(n)}" for n in sorted(set(of))))
        took = sorted(s for keeper in keepers for s in keeper.recoveries_s)
        alone = sum(not kill.whole_group for kill in self.kills)
        lines.append(f"{'all':<12}{len(self.kills):>6}  {alone} of them without the JVM")
        lines.append(f"recovered in {took[0]:.1f} to {took[-1]:.1f} s, median {took[len(took) // 2]:.1f} s")
        return "\n".join(lines)


def time_for(kills: int) -> Deadline:
    """The time that a loop has until so many kills count."""
    return Deadline(f"{kills} kills do not count", (kills + 1) * RECOVERY_TIMEOUT_S)


def in_background(work: Callable[[], Any]) -> Callable[[], bool]:
    """Starts `work`. Returns a function that waits for it; False: it was refused or has failed."""
    succeeded: list[bool] = []
    said: list[str] = []

    def run() -> None:
        try:
            work()
            succeeded.append(True)
        except SwitchyardError as error:
            said.append(error.what)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> bool:
        thread.join(300)
        assert not thread.is_alive()
        print(f"  {'done' if succeeded else 'not done: ' + '; '.join(said)}")
        return bool(succeeded)

    return result


@dataclass(frozen=True, kw_only=True)
class Story:
    """One app from start to end, with `kills` kills in all."""

    app: str
    source: str
    topic: str
    first: Path
    second: Path
    correction: str | None
    history: int
    rate: int
    kills: int
    first_ledger: dict[str, Any]

    def run(self, settings: Settings, spark: SparkSession, seed: int) -> None:
        began = time.monotonic()
        drivers = Drivers(settings)
        old, new = f"{self.app}.v1", f"{self.app}.v2"
        # two fifths while they hydrate, at least one of each release; a third while they are live, the rest in switches
        hydrating, live = max(2, self.kills * 2 // 5), max(1, self.kills * 3 // 10)
        switching = self.kills - hydrating - live
        sources = sources_for(self.app, Options(seed=seed, per_second=self.rate))
        produce(settings, sources, history=self.history)

        def say(what: str) -> None:
            print(f"[{time.monotonic() - began:6.1f} s] {what}", flush=True)

        with ExitStack() as stack:
            stack.callback(drivers.end)
            end_input = stack.enter_context(producing(settings, sources, self.rate))
            context = stack.enter_context(operator(settings, drivers, spark=lambda: spark))
            killer = Killer(settings, drivers, context, seed)

            phase_of = partial(self._phase, context)
            stack.enter_context(trials_in(spark))
            self._stage_first(context)
            start(context, old)
            keeper_1 = stack.enter_context(Keeper(settings, drivers, old))
            say("the first release hydrates")
            self._kill_each(killer, [keeper_1], [hydrating - hydrating // 2], phase_of)
            self._hydrate(context, keeper_1)
            execute(context, plan_promote(context, old))
            follower = Follower(settings, self.app, "--group", "kills", "--from-beginning")
            stack.callback(follower.end)
            say("the first release is live")
            stage(context, self.app, 2, self.second, correction=self.correction)
            start(context, new)
            keepers = [keeper_1, stack.enter_context(Keeper(settings, drivers, new))]
            say("the second release hydrates beside it")
            # both at once, so that one boots while the other is killed
            self._kill_each(killer, keepers, [live, hydrating // 2], phase_of)
            for keeper in keepers:
                self._hydrate(context, keeper)
            say(f"both are up: {len(killer.kills)} kills")

            self._diff(context, keepers, new)
            say("compared")
            self._switch(context, settings, drivers, killer, keepers, switching, say)
            for keeper in keepers:
                keeper.await_steady()
            say(f"switched: {len(killer.kills)} kills")

            end_input()
            self._await_rest(settings, keepers)
            follower.come_to_rest()
            follower.end()
            self._stop(context, settings, drivers, keepers)
            say("stopped")

        say(f"over, seed {seed}")
        print(killer.table(keepers))
        self._check(settings, killer, follower)

    def _stage_first(self, context: Context) -> None:
        """Stages the first release, and then breaks its source: every restart runs what was staged."""
        stage(context, self.app, 1, self.first)
        (self.first / f"{self.app.replace('-', '_')}.py").write_text("1 / 0\n")

    def _phase(self, context: Context, release: str) -> str:
        if self._live(context) == release:
            return "live"
        lag = lag_records(context.settings, release, {self.source: self.topic})
        return "hydrating" if lag > BATCH_RECORDS else "caught up"

    def _hydrate(self, context: Context, keeper: Keeper) -> None:
        keeper.await_steady()
        wait_ready(context, keeper.release, unread_records=2 * self.rate, for_s=0.5, timeout_s=240)

    def _check(self, settings: Settings, killer: Killer, follower: Follower) -> None:
        """Both results and what the follower got are complete, without a duplicate, and enough was killed."""
        old, new = f"{self.app}.v1", f"{self.app}.v2"
        ledgers = {
            old: check_result(self.app, settings.bootstrap, result_topic(old, 1), **self.first_ledger),
            new: check_result(self.app, settings.bootstrap, result_topic(new, 1)),
            "follower": check_log(self.app, settings.bootstrap, follower.path),
        }
        numbers = [each["switch"] for each in follower.lines()]
        print(f"{self.app}: {max(numbers)} switches")
        for name, ledger in ledgers.items():
            print(f"{name}: {_line(ledger)}")
        assert len(killer.kills) >= self.kills
        for phase in ("hydrating", "live", "switching"):
            assert killer.count(phase) >= max(1, self.kills // 5), f"too few kills while {phase}"
        assert numbers == sorted(numbers)
        for name, ledger in ledgers.items():
            assert ledger.clean, f"{name}: {ledger.as_json()}"

    @staticmethod
    def _kill_each(killer: Killer, keepers: list[Keeper], kills: list[int], phase_of: Callable[[str], str]) -> None:
        """Kills the driver of each keeper so many times, whichever is steady."""
        left, deadline = list(kills), time_for(sum(kills))
        while any(left):
            deadline.check()
            for index, keeper in reversed(list(enumerate(keepers))):
                if left[index] and keeper.steady:
                    left[index] -= killer.kill(keeper, lambda keeper=keeper: phase_of(keeper.release))
            for keeper in keepers:
                assert not keeper.errors
            if not any(keeper.steady for keeper in keepers):
                until("nothing commits", lambda: any(k.steady or k.errors for k in keepers), RECOVERY_TIMEOUT_S)

    def _await_rest(self, settings: Settings, keepers: list[Keeper]) -> None:
        inputs = {self.source: self.topic}
        for name in (keeper.release for keeper in keepers):
            until(f"{name} has not read everything", lambda name=name: at_rest(settings, name, inputs), 120)

    @staticmethod
    def _stop(context: Context, settings: Settings, drivers: Drivers, keepers: list[Keeper]) -> None:
        for keeper in keepers:
            keeper.rest()
        for release in (keeper.release for keeper in keepers):
            assert open_transactions(settings, topics_of(context, release)) == []
            stop(context, release)
            assert drivers.of(release).wait(30) == 0

    def _diff(self, context: Context, keepers: list[Keeper], new: str) -> None:
        for keeper in keepers:
            keeper.await_steady()
        diff(context, new)

    def _switch(
        self,
        context: Context,
        settings: Settings,
        drivers: Drivers,
        killer: Killer,
        keepers: list[Keeper],
        kills: int,
        say: Callable[[str], None],
    ) -> None:
        """Promotes and rolls back while drivers are killed. Ends with enough kills and the second release live."""

        def phase_of(plan: Plan) -> str:
            return "switched" if context.registry.state().operations[plan.id].resolved else "switching"

        # it may have to switch once more, to end with the second release
        deadline = time_for(kills + 2)
        while (live := self._live(context)) != keepers[1].release or killer.count("switching") < kills:
            deadline.check()
            left = max(1, kills - killer.count("switching"))
            for keeper in keepers:
                keeper.await_steady()
            forward = live == keepers[0].release
            if context.registry.state().releases[keepers[1].release].ready is None:
                raise AssertionError("the second release is not ready any more")
            plan = self._planned(context, keepers[1].release if forward else None)
            say(f"{plan.operation}, {kills - killer.count('switching')} kills to go")
            done = in_background(lambda plan=plan: self._execute(settings, drivers, plan))
            self._await_opened(context, plan)
            for keeper in killer.random.sample(keepers, min(left, killer.random.choice((1, 1, 2)))):
                if killer.count("switching") < kills and phase_of(plan) == "switching":
                    killer.kill(keeper, lambda plan=plan: phase_of(plan), within_s=8.0, after_s=0.5)
            done()
            say(f"live is {self._live(context)}")

    def _planned(self, context: Context, candidate: str | None) -> Plan:
        """The plan to promote `candidate`, or to roll back. It is refused while a killed release is far behind."""
        found: list[Plan] = []

        def plan() -> bool:
            try:
                found.append(plan_promote(context, candidate) if candidate else plan_rollback(context, self.app))
            except Refused as refusal:
                assert "records behind" in refusal.what, refusal
            return bool(found)

        until("what was killed stays behind", plan, 120)
        return found[0]

    def _await_opened(self, context: Context, plan: Plan) -> None:
        until("the operation is not open", lambda: plan.id in context.registry.state().operations, 60)

    def _execute(self, settings: Settings, drivers: Drivers, plan: Plan) -> None:
        with operator(settings, drivers) as context:
            execute(context, plan)

    def _live(self, context: Context) -> str | None:
        switch = context.registry.state().live(self.app)
        return switch.new if switch is not None else None


def _line(ledger: Ledger) -> str:
    return (
        f"{ledger.records:,} records, {ledger.keys:,} keys: {ledger.duplicates} duplicates, {ledger.missing} missing, "
        f"{ledger.wrong} wrong, {ledger.steps_back} steps back; {ledger.late} late keys of {ledger.input_records:,} input records"
    )


@pytest.mark.timeout(1800)
@pytest.mark.long
@pytest.mark.parametrize("kills", [int(KILLS or 4)])
def test_a_table_survives_kills_in_open_transactions(
    settings: Settings, spark: SparkSession, tmp_path: Path, kills: int
) -> None:
    Story(
        app="stock-stats",
        source="trades",
        topic="trades",
        first=code_without_suite(tmp_path / "v1", "stock_stats", ROOT / "demo" / "v1"),
        second=code_without_suite(tmp_path / "v2", "stock_stats"),
        correction=None,
        history=40_000,
        rate=400,
        kills=kills,
        first_ledger={"bids_are_asks": True},
    ).run(settings, spark, SEED)


@pytest.mark.timeout(1200)
@pytest.mark.long
@pytest.mark.parametrize("kills", [int(KILLS or 4)])
def test_a_stream_survives_kills_in_open_transactions(
    settings: Settings, spark: SparkSession, tmp_path: Path, kills: int
) -> None:
    Story(
        app="large-orders",
        source="orders",
        topic="orders",
        first=code_without_suite(tmp_path / "v1", "large_orders"),
        second=code_without_suite(tmp_path / "v2", "large_orders"),
        correction="killed in between",
        history=60_000,
        rate=400,
        kills=kills,
        first_ledger={},
    ).run(settings, spark, SEED + 1)
