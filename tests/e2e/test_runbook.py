"""The runbook: each section on a cluster with that trouble, its commands typed as they are on the page.

Their output must have the page's words; numbers, times and ids may differ. `SWITCHYARD_RUNBOOK=write` (`make runbook`)
writes the output into the page.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from demo.ledger.reader import read
from orchestration.operations.lifecycle import live_release
from orchestration.operations.looking.in_use import followers_in
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.undo import plan_undo
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.planning.run import plan_start
from orchestration.operations.procedures.diff import diff
from orchestration.operations.procedures.wait import wait_ready
from pipelines.engine.checkpoint import release_folder
from pipelines.engine.lease import is_alive
from pipelines.errors import Refused
from pipelines.kafka.client import admin, producer
from pipelines.kafka.clock import now_ms
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.offsets import end_offsets
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.model.entries import Entry, GenerationStarted, WantedSet
from pipelines.model.reset import Target
from tests.e2e.cluster import LARGE, ROOT, Follower, OwnBroker, folded
from tests.e2e.harness import code_without_suite
from tests.shared import console
from tests.shared.console import Shown
from tests.shared.operators import Death

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PAGE = ROOT / "docs" / "runbook.md"
APP, V1, V2 = "word-count", "word-count.v1", "word-count.v2"
PARTITIONS = 4
# half of the lines come before noon in Paris
START = datetime(2026, 11, 21, 10, 55, tzinfo=UTC)
EARLIEST = Target(kind="earliest", text="--to-earliest")
POISON = "kaboom"


@dataclass
class Night:
    """A cluster with two versions of `word-count`, of which one word kills the second; and the person on call."""

    cluster: OwnBroker
    follower: Follower
    lines: Iterator[str]
    sent: int = 0
    # partition -> offsets of lines that no result counts: skipped, or deleted
    gone: dict[int, set[int]] = field(default_factory=lambda: {p: set() for p in range(PARTITIONS)})
    # the record that the last command named
    record: str = ""

    # -- the trouble

    def produce(self, count: int, text: str | None = None) -> None:
        client = producer(self.cluster.settings)
        for _ in range(count):
            at = int(START.timestamp() * 1000) + self.sent * 300
            client.produce("lines", text or next(self.lines), timestamp=at, partition=self.sent % PARTITIONS)
            self.sent += 1
        assert client.flush(30) == 0

    @property
    def live(self) -> str:
        found = live_release(self.cluster.state, APP)
        assert found is not None
        return found.name

    def make_live(self, name: str) -> None:
        """Restores the state of the evening: `name` is live, the other is its standby, and both run."""
        cluster = self.cluster
        # a test that has failed may have left it dead
        cluster.broker.start(180)
        for each in (V1, V2):
            cluster.run(plan_start(cluster.context(), each))
        if self.live == name:
            return
        for each in (V1, V2):
            wait_ready(cluster.context(), each, for_s=0.2, timeout_s=120)
        try:
            cluster.run(plan_rollback(cluster.context(), APP))
        except Refused:
            # one of them was reset since they were compared
            diff(cluster.context(), name)
            cluster.run(plan_promote(cluster.context(), APP, version=int(name[-1])))

    def runs(self, name: str) -> bool:
        return self.cluster.context().holder(self.cluster.state.releases[name]) is not None

    @contextmanager
    def processes(self) -> Iterator[None]:
        """Drivers that the test starts in the block are processes."""
        self.cluster.drivers.processes.update((V1, V2))
        try:
            yield
        finally:
            self.cluster.drivers.processes.clear()

    def make_processes(self, *names: str) -> None:
        """Makes running drivers processes, which can be killed."""
        for name in names:
            if self.cluster.process_of(name) is None:
                self.cluster.stop(name)
                with self.processes():
                    self.cluster.run(plan_start(self.cluster.context(), name))

    def kill(self, name: str) -> None:
        driver = self.cluster.process_of(name)
        assert driver is not None
        os.kill(driver.pid, signal.SIGKILL)
        self.cluster.until(f"{name} lives", lambda: not self.runs(name))

    def lose(self, name: str) -> None:
        """Ends a driver, though its release should run."""
        if self.cluster.process_of(name) is not None:
            self.kill(name)
            return
        _, stop = self.cluster.drivers.running(name)
        stop.set()
        self.cluster.until(f"{name} lives", lambda: not self.runs(name))

    def die_after(self, entry: type[Entry]) -> None:
        """An operator starts to reset the standby, and dies right after one of its entries."""
        command = ("reset", V1, "--to-earliest", "--stop", "--execute")
        said = self.cluster.operators.start(*command, death=Death(entry=entry)).end()
        assert said.code == -signal.SIGKILL, said.text

    def kill_broker(self) -> None:
        pid = self.cluster.broker.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.cluster.until("the broker answers", lambda: not self.cluster.broker.status().answering)

    def newest(self, kind: str) -> str:
        """The last operation of that kind."""
        return [o.id for o in self.cluster.state.operations.values() if o.opened.name == kind][-1]

    def await_drivers(self) -> None:
        """Waits for a new heartbeat of each driver whose process has kept running, however long it was silent."""
        since = now_ms()
        found = {name: self.cluster.state.releases[name] for name in (V1, V2)}
        drivers = [n for n, r in found.items() if r.lease and not r.lease_ended and is_alive(r.lease.holder)]

        def heard() -> bool:
            beats = latest_heartbeats(self.cluster.settings)
            return all(n in beats and beats[n].at_ms > since and beats[n].state == "running" for n in drivers)

        self.cluster.until("drivers have not gone on", heard)

    # -- what is right

    def right(self, name: str, after: dict[int, int] | None = None) -> None:
        """Asserts that its result, and its consumer's if it is live, counts the words of all lines it must read."""
        self.cluster.settle(name, "lines")
        counts: Counter[str] = Counter()
        for record in read(self.cluster.settings.bootstrap, "lines"):
            if record.offset in self.gone[record.partition] or record.offset < (after or {}).get(record.partition, 0):
                continue
            counts.update(w for w in re.split(r"\W+", (record.value or b"").decode().lower()) if w not in ("", "the"))
        topic = self.cluster.state.releases[name].result_topics[""]
        rows = folded(self.cluster.settings, topic, end_offsets(self.cluster.settings, [topic])[topic])
        assert {json.loads(k)["word"]: row["count"] for k, row in rows.items()} == counts
        if self.live == name:
            self.cluster.until("the consumer's table is another", lambda: self.consumed() == counts, timeout_s=60)

    def consumed(self) -> dict[str, int]:
        table: dict[str, int | None] = {}
        for line in self.follower.lines():
            value = json.loads(line["value"]) if line["value"] else None
            table[json.loads(line["key"])["word"]] = value["count"] if value else None
        return {word: count for word, count in table.items() if count is not None}

    # -- the page

    def typed(self, section: str, block: int, *codes: int, processes: Collection[str] = ()) -> None:
        """Types a block's commands and compares the output with the page. `codes`: their exit codes; none: all 0.

        `processes`: commands that run as processes, as do the drivers that these start; the others run here.
        """
        shown = console.blocks(PAGE.read_text(), section)[block]
        found = []
        for code, step in zip(codes or (0,) * len(shown), shown, strict=True):
            command = self.as_meant(step.command)
            output = self.run(command, code, process=command.split()[1] in processes)
            found.append(Shown(command, output))
            if command == "switchyard up":
                self.await_drivers()
            # the next command may name what this one printed
            told = re.search(r"--skip (\S+)", output)
            self.record = told.group(1) if told else self.record
        console.compare(PAGE, section, block, found)

    def as_meant(self, command: str) -> str:
        """A command with the operation and the record of this test."""
        for kind in ("reset", "undo"):
            named = console.identifier(kind, command)
            if named is not None:
                command = command.replace(named, self.newest(kind))
        return re.sub(r"(?<=--skip )\S+", self.record, command)

    def run(self, command: str, code: int, *, process: bool) -> str:
        run = self.cluster.as_process if process else self.cluster.cli
        said = run(*shlex.split(command)[1:], COLUMNS="140", LOGNAME="ada")
        assert said.code == code, f"$ {command}\n{said.shown}"
        return console.as_shown(said.shown, self.cluster.settings)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Night]:
    cluster = OwnBroker(tmp_path_factory.mktemp("night"), "runbook", lambda: spark)
    try:
        yield from _night(cluster)
    finally:
        cluster.close()


def _night(cluster: OwnBroker) -> Iterator[Night]:
    from pydoc_data.topics import topics

    lines = (line for name in sorted(topics) for line in topics[name].splitlines() if line.strip() and line.isascii())
    ensure_topic(cluster.settings, "lines", PARTITIONS, INPUT)
    first, second = (code_without_suite(cluster.folder / v, "word_count") for v in ("v1", "v2"))
    module = second / "word_count.py"
    killing = f"""F.expr("if(instr(line, '{POISON}') > 0, raise_error('no count for {POISON}'), lower(line))")"""
    module.write_text(module.read_text().replace('F.lower("line")', killing))
    follower = Follower(cluster, APP, "billing")
    made = Night(cluster, follower, lines)
    made.produce(2_000)
    # the first tests kill them
    with made.processes():
        cluster.hydrate(APP, 1, batch=LARGE, code_dir=first)
    cluster.make_live(APP, 1)
    with follower:
        with made.processes():
            cluster.hydrate(APP, 2, batch=LARGE, code_dir=second)
        made.make_live(V2)
        yield made
        cluster.stop(V1, V2)


def test_the_host_was_rebooted(night: Night) -> None:
    night.make_live(V2)
    night.make_processes(V1, V2)
    night.produce(20)
    for name in (V1, V2):
        night.kill(name)
    night.kill_broker()
    night.typed("The host was rebooted", 0, 1, 0, 0, 0, processes=("status", "up", "start"))
    started = night.cluster.process_of(V2)
    night.run("switchyard up --all", 0, process=True)
    # what ran was not started again
    assert started == night.cluster.process_of(V2) and night.runs(V1)
    night.produce(20)
    for name in (V1, V2):
        night.right(name)


def test_the_broker_is_gone(night: Night) -> None:
    night.make_live(V2)
    night.make_processes(V1, V2)
    drivers = [night.cluster.process_of(name) for name in (V1, V2)]
    night.kill_broker()
    night.typed("The broker is gone", 0, 1, 0, 0, processes=("up",))
    night.produce(20)
    for name in (V1, V2):
        night.right(name)
    assert drivers == [night.cluster.process_of(name) for name in (V1, V2)] and None not in drivers


def test_the_live_release_is_dead(night: Night) -> None:
    night.make_live(V2)
    night.make_processes(V2)
    night.kill(V2)
    night.produce(20)
    night.typed("The live release is dead", 0, processes=("start",))
    night.right(V2)
    # both are at the same boundary
    night.right(V1)
    night.kill(V2)
    night.produce(20)
    night.typed("The live release is dead", 1, processes=("rollback",))
    assert night.live == V1
    night.right(V1)


def test_wrong_since_noon(night: Night) -> None:
    night.make_live(V2)
    night.typed("Wrong since noon", 0)
    assert night.live == V1
    night.right(V1)
    night.typed("Wrong since noon", 1)
    at_noon = int(datetime(2026, 11, 21, 11, tzinfo=UTC).timestamp() * 1000)
    night.right(V1, _first_at(night, at_noon))
    night.cluster.run(plan_undo(night.cluster.context(), night.newest("reset"), stop=True))
    night.right(V1)


def _first_at(night: Night, time_ms: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for record in read(night.cluster.settings.bootstrap, "lines"):
        if record.time_ms >= time_ms:
            found.setdefault(record.partition, record.offset)
    return found


def test_state_lost(night: Night) -> None:
    night.make_live(V2)
    night.cluster.stop(V2)
    shutil.rmtree(release_folder(night.cluster.settings, V2))
    night.typed("State lost", 0, 1, 0)
    night.right(V2)


def test_reset_the_wrong_app(night: Night) -> None:
    night.make_live(V2)
    night.cluster.run(plan_reset(night.cluster.context(), V1, Request(target=EARLIEST, stop=True)))
    night.cluster.settle(V1, "lines")
    state, topic = night.cluster.state, night.cluster.state.releases[V1].topics_of(1)[""]
    night.cluster.until(
        "billing still needs the standby", lambda: not followers_in(night.cluster.context(), state, APP, topic)
    )
    night.typed("The wrong app was reset", 0)
    night.right(V1)


def test_an_operator_left_in_the_middle(night: Night) -> None:
    night.make_live(V2)
    night.die_after(GenerationStarted)
    night.typed("An operation was left unfinished", 0)
    night.right(V1)
    generation = night.cluster.state.releases[V1].generation
    night.die_after(WantedSet)
    night.cluster.until(f"{V1} has not ended", lambda: not night.runs(V1))
    night.typed("An operation was left unfinished", 1)
    assert night.cluster.state.releases[V1].generation == generation
    night.produce(20)
    night.right(V1)


def test_back_to_yesterdays_version(night: Night) -> None:
    night.make_live(V2)
    diff(night.cluster.context(), V1)
    night.produce(20)
    night.typed("Back to yesterday's version", 0)
    assert night.live == V1
    night.right(V1)


def test_a_poison_record(night: Night) -> None:
    night.make_live(V2)
    # stopped meanwhile, so that it finds them in one batch
    night.cluster.stop(V2)
    night.produce(10)
    partition = night.sent % PARTITIONS
    offset = end_offsets(night.cluster.settings, ["lines"])["lines"][partition]
    night.produce(1, f"a line with {POISON} in it")
    night.produce(9)
    night.cluster.settle(V1, "lines")
    night.cluster.run(plan_start(night.cluster.context(), V2))
    night.cluster.until(f"{V2} has not failed", lambda: night.cluster.state.releases[V2].state == "failed")
    night.cluster.until(f"{V2} has not ended", lambda: night.cluster.state.releases[V2].lease_ended)
    # it starts a Spark session of its own
    night.typed("A poison record", 0, 0, 1, 0, processes=("bisect",))
    assert night.record == f"lines:{partition}:{offset}"
    night.right(V1)
    night.gone[partition].add(offset)
    night.right(V2)
    # and it is still in the input
    night.gone[partition].clear()


def test_input_cut_by_retention(night: Night) -> None:
    """The last section: after it, the history that others need is deleted."""
    night.make_live(V2)
    # the host was down for so long
    night.lose(V2)
    night.produce(100)
    night.cluster.settle(V1, "lines")
    cut = {p: end - 5 for p, end in end_offsets(night.cluster.settings, ["lines"])["lines"].items()}
    client = admin(night.cluster.settings)
    for future in client.delete_records([TopicPartition("lines", p, offset) for p, offset in cut.items()]).values():
        future.result(30)
    night.typed("Input deleted by retention", 0, 3, 0)
    night.right(V2, cut)
