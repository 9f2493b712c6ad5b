"""A driver as a process: alone on its release, visible to Kafka's own tools, with clear errors when it can't run on.

The tests of `words` share one release, word-count.v1: each continues where the previous one left it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from demo.ledger import Ledger, check_result
from orchestration.local.jars import broker_jars
from orchestration.local.preflight import find_java
from orchestration.local.process import ProcessRef
from orchestration.operations.context import Context
from orchestration.sources import Options, sources_for
from pipelines.engine.checkpoint import release_folder
from pipelines.engine.lease import held_by
from pipelines.kafka.client import await_connection, consumer, producer
from pipelines.kafka.clock import now_ms
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.offsets import end_offsets, group_offsets
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.model.names import dead_letter_topic, result_topic
from pipelines.settings import Settings
from tests.e2e.harness import (
    SMALL,
    Drivers,
    at_rest,
    committed,
    open_transactions,
    operator,
    producing,
    stage,
    start,
    topics_of,
    uncommitted,
    until,
)
from tests.shared.login import BrokerWithLogin
from tests.shared.threads import Threads, trials_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]

WORDS, LINES = "words.v1", "lines"
# a batch on two busy cores; on idle ones it takes a second
BATCH_TIMEOUT_S = 120.0
# as many records per second of event time as are sent: the broker refuses times that run ahead of its clock
LIVE_RATE = 200
LIVE = Options(per_second=LIVE_RATE)


@pytest.fixture(scope="module")
def settings(broker: Settings) -> Settings:
    return broker.model_copy(update={**SMALL, "max_records_per_batch": 20_000, "lease_timeout_s": 5.0})


@pytest.fixture(scope="module")
def drivers(settings: Settings) -> Iterator[Drivers]:
    found = Drivers(settings)
    yield found
    found.end()


@pytest.fixture(scope="module")
def context(settings: Settings, drivers: Drivers) -> Iterator[Context]:
    with operator(settings, drivers) as found:
        yield found


def send(settings: Settings, topic: str, *values: str | bytes | None, partition: int = 0) -> None:
    client = producer(settings, linger_ms=0)
    # otherwise the producer waits half a second for its first record
    await_connection(client, topic)
    for value in values:
        client.produce(topic, value, None, partition=partition)
    assert client.flush(30) == 0


def records(settings: Settings, topic: str) -> list[tuple[bytes | None, bytes | None, dict[str, bytes]]]:
    """All committed records of a topic: key, value, headers."""
    client: Consumer = consumer(settings, auto_offset_reset="earliest", enable_partition_eof=True)
    left = set(end_offsets(settings, [topic])[topic])
    found = []
    try:
        for p in left:
            # connects it to the leader at once: an assignment alone may wait for librdkafka's next round, a second
            client.get_watermark_offsets(TopicPartition(topic, p), timeout=30)
        client.assign([TopicPartition(topic, p, 0) for p in left])
        while left:
            message = client.poll(30)
            assert message is not None
            if message.error() is not None:
                left.discard(message.partition() or 0)
                continue
            headers: dict[str, bytes] = dict(message.headers() or [])  # type: ignore[arg-type]
            found.append((message.key(), message.value(), headers))
    finally:
        client.close()
    return found


def children(pid: int) -> list[int]:
    """The processes that a process has started itself and that still run."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@dataclass
class Words:
    """The release that the first tests share."""

    settings: Settings
    context: Context
    drivers: Drivers
    # the folder that it was staged from
    tree: Path

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.drivers.of(WORDS)

    def run(self) -> None:
        """Starts it, unless it runs."""
        start(self.context, WORDS)

    def end(self) -> None:
        """Ends its process at a boundary, if it runs in one."""
        if self.holder() is not None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(90) == 0, self.drivers.log(WORDS)[-3000:]

    @contextmanager
    def run_as_a_thread(self, *, force: bool = False) -> Iterator[Threads]:
        """While the block runs, so does a driver that is neither killed nor frozen: it needs no process."""
        threads = Threads(self.settings)
        try:
            with operator(self.settings, threads) as context:
                start(context, WORDS, force=force)
                yield threads
        finally:
            threads.end()

    def await_rest(self) -> None:
        until(
            f"{WORDS} has not read everything", lambda: at_rest(self.settings, WORDS, {"lines": LINES}), BATCH_TIMEOUT_S
        )

    def ledger(self) -> Ledger:
        """The result so far, after all input was read."""
        self.await_rest()
        assert open_transactions(self.settings, topics_of(self.context, WORDS)) == []
        return check_result("word-count", self.settings.bootstrap, result_topic(WORDS, 1))

    def spelled(self) -> set[str]:
        """The words of the result."""
        return {json.loads(key or b"")["word"] for key, _, _ in records(self.settings, result_topic(WORDS, 1))}

    @property
    def token(self) -> int:
        return self.context.registry.state().releases[WORDS].token

    def holder(self) -> str | None:
        release = self.context.registry.state().releases[WORDS]
        return held_by(release, latest_heartbeats(self.settings).get(WORDS), self.settings, at_ms=now_ms())


@pytest.fixture(scope="module", autouse=True)
def _trials(spark: SparkSession) -> Iterator[None]:
    with trials_in(spark):
        yield


# word-count, which passes its words through a function of another module in Spark's Python workers
COUNTED = """
from pyspark.sql import functions as F

from pipelines.model import Stream, Table, Text, app
from .spelling import PREFIX, spelled


@app(name="words", inputs={{"lines": Stream(topic="lines", value=Text("line"))}}, result=Table(key=("word",), partitions=4))
def words(lines, settings):
    found = lines.select(F.explode(F.split(F.lower("line"), r"\\W+")).alias("word")).where("word not in ('', 'the')")
    return found.select(F.concat(F.lit(PREFIX + "{prefix}"), F.udf(spelled, "string")("word")).alias("word")).groupBy("word").count()
"""
SPELLING = """
PREFIX = "{prefix}"


def spelled(word):
    return PREFIX + word
"""


def code(folder: Path, **modules: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def words(settings: Settings, context: Context, drivers: Drivers, tmp_path_factory: pytest.TempPathFactory) -> Words:
    ensure_topic(settings, LINES, 4, INPUT)
    for partition in range(4):
        send(settings, LINES, "the first line of all", "a second line", partition=partition)
    tree = tmp_path_factory.mktemp("code")
    stage(context, "words", 1, code(tree, words=COUNTED.format(prefix=""), spelling=SPELLING.format(prefix="")))
    return Words(settings, context, drivers, tree)


def kafka_groups(settings: Settings, *commands: tuple[str, ...]) -> list[str]:
    """The outputs of Kafka's own kafka-consumer-groups.sh for each of `commands`, which run at once."""
    tool = [find_java().path, "-Xmx128m", "-cp", ":".join(map(str, broker_jars()))]
    tool += ["org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", settings.bootstrap]

    def ask(options: tuple[str, ...]) -> str:
        done = subprocess.run([*tool, *options], capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    with ThreadPoolExecutor() as pool:
        return list(pool.map(ask, commands))


@pytest.mark.long
def test_kafkas_own_tool_shows_member_and_lag_and_refuses_a_reset(settings: Settings, words: Words) -> None:
    words.run()
    words.await_rest()
    reset = ("--reset-offsets", "--to-earliest", "--topic", LINES, "--group", WORDS, "--execute")
    shown, refused = kafka_groups(settings, ("--describe", "--group", WORDS), reset)
    rows = [line.split() for line in shown.splitlines() if line.startswith(WORDS)]
    # group, topic, partition, current, end, lag, consumer id ...
    assert {(row[1], row[2]) for row in rows} == {(LINES, str(p)) for p in range(4)}, shown
    assert [row[3:6] for row in rows] == [["2", "2", "0"]] * 4
    assert all(row[6].startswith(f"{WORDS}-driver") for row in rows)
    assert "Assignments can only be reset if the group" in refused and "inactive" in refused
    stands = group_offsets(settings, WORDS)[LINES]
    assert {partition: offset for partition, (offset, _) in stands.items()} == dict.fromkeys(range(4), 2)
    assert words.ledger().clean


def test_a_second_driver_says_who_runs_the_release_and_exits(settings: Settings, words: Words) -> None:
    words.run()
    words.await_rest()
    first, token, log = words.process, words.token, words.drivers.log_path(WORDS)
    size = log.stat().st_size
    before = committed(settings, WORDS)
    second = words.drivers.spawn(WORDS)
    assert second.wait(120) == 3
    said = log.read_bytes()[size:].decode()
    assert f"{WORDS} is run by process {first.pid} on {settings.host} (token {token})" in said
    assert (words.token, first.poll()) == (token, None)
    assert committed(settings, WORDS) == before
    # so that the next tests see the driver that runs
    words.drivers.forget(second)
    send(settings, LINES, "still counted")
    assert words.ledger().clean
    assert committed(settings, WORDS).token == token


def test_a_release_runs_its_frozen_code_in_sparks_workers_too(settings: Settings, words: Words) -> None:
    words.run()
    words.await_rest()
    # a different version of both modules, and one beside them that can't even be imported
    code(words.tree, words=COUNTED.format(prefix="new-"), spelling=SPELLING.format(prefix="new-"), broken="1 / 0")
    send(settings, LINES, "unheard of so far")
    assert words.ledger().clean
    assert {"unheard", "second"} <= words.spelled()
    # nor does the next driver, which is started below, use what is there now


def test_malformed_records_become_dead_letters_and_the_stream_continues(settings: Settings, words: Words) -> None:
    words.run()
    words.await_rest()
    before = committed(settings, WORDS).total
    at = end_offsets(settings, [LINES])[LINES][2]
    send(settings, LINES, "good one", b"\xff\xfe bad", None, "good two", partition=2)
    ledger = words.ledger()
    assert ledger.clean and ledger.input_malformed == 2
    after = committed(settings, WORDS).total
    assert (after.dead_lettered - before.dead_lettered, after.rows_in - before.rows_in) == (2, 4)
    letters = records(settings, dead_letter_topic(WORDS))
    assert [(value, headers["topic"], headers["partition"], headers["offset"]) for _, value, headers in letters] == [
        (b"\xff\xfe bad", b"lines", b"2", str(at + 1).encode()),
        (None, b"lines", b"2", str(at + 2).encode()),
    ]
    assert [headers["reason"] for _, _, headers in letters] == [b"the value is not UTF-8", b"the value is null"]


@pytest.mark.long
def test_a_driver_waits_for_a_broker_that_is_down(settings: Settings, words: Words) -> None:
    words.run()
    words.await_rest()
    process, token, batch = words.process, words.token, committed(settings, WORDS).boundary.batch_id
    with producing(settings, sources_for("word-count", LIVE), LIVE_RATE):
        until("no batch runs", lambda: committed(settings, WORDS).boundary.batch_id > batch, BATCH_TIMEOUT_S)
        broker = BrokerWithLogin(settings)
        broker.stop()
        away_until = time.monotonic() + 4.0
        # it must not end meanwhile
        until("the time away", lambda: process.poll() is not None or time.monotonic() > away_until, 10)
        broker.start(180)
    # with another producer: the first one has been seen to send nothing more after the outage
    with producing(settings, sources_for("word-count", LIVE), LIVE_RATE) as end_input:
        batch = until("no progress", lambda: newest_progress(settings, WORDS), BATCH_TIMEOUT_S).boundary.batch_id
        until("it does not go on", lambda: committed(settings, WORDS).boundary.batch_id > batch + 2, BATCH_TIMEOUT_S)
        end_input()
    assert process.poll() is None, words.drivers.log(WORDS)[-3000:]
    assert words.ledger().clean
    assert words.token == token


def freeze(settings: Settings, process: subprocess.Popen[bytes], topics: Mapping[str, int]) -> int:
    """Stops a driver that gets input, in the middle of a transaction. Returns the batch that it runs."""
    running: list[int] = []

    def frozen() -> bool:
        if coming.poll(0.1) is None:
            return False
        os.killpg(process.pid, signal.SIGSTOP)
        before = newest_progress(settings, WORDS)
        if open_transactions(settings, topics):
            running.append(before.boundary.batch_id + 1 if before is not None else 0)
            return True
        # it had committed by then
        os.killpg(process.pid, signal.SIGCONT)
        return False

    with closing(uncommitted(settings, topics)) as coming:
        until("no transaction is open", frozen, BATCH_TIMEOUT_S, poll_s=0)
    return running[0]


@pytest.mark.long
def test_a_frozen_driver_writes_nothing_after_it_wakes_up(settings: Settings, words: Words) -> None:
    # as in the test of the code that a release was staged with
    code(words.tree, words=COUNTED.format(prefix="new-"), spelling=SPELLING.format(prefix="new-"), broken="1 / 0")
    words.run()
    zombie, token = words.process, words.token
    topics = topics_of(words.context, WORDS)
    with ExitStack() as stack:
        end_input = stack.enter_context(producing(settings, sources_for("word-count", LIVE), LIVE_RATE))
        freeze(settings, zombie, topics)
        threads = stack.enter_context(words.run_as_a_thread(force=True))
        until(
            "the new driver does not commit",
            # there is none before the first batch
            lambda: (p := newest_progress(settings, WORDS)) and p.token == token + 1,
            BATCH_TIMEOUT_S,
        )
        batch = committed(settings, WORDS).boundary.batch_id
        os.killpg(zombie.pid, signal.SIGCONT)
        assert zombie.wait(60) == 3
        until("it does not go on", lambda: committed(settings, WORDS).boundary.batch_id > batch + 2, BATCH_TIMEOUT_S)
        end_input()
        assert words.ledger().clean
        assert not [word for word in words.spelled() if word.startswith("new-")], "code that it was not staged with"
        assert committed(settings, WORDS).token == words.token == token + 1
        # whatever the frozen driver's Spark wrote is outside the checkpoint that counts
        folder = release_folder(settings, WORDS) / f"g1.t{token + 1}"
        assert max(int(p.name) for p in (folder / "commits").iterdir() if p.name.isdigit()) >= batch
        assert threads.alive(WORDS)


@pytest.mark.long
def test_a_driver_reports_that_its_jvm_died_and_the_next_one_continues(settings: Settings, words: Words) -> None:
    words.run()
    words.await_rest()
    for pid in children(words.process.pid):
        os.kill(pid, signal.SIGKILL)
    send(settings, LINES, "what comes meanwhile")
    assert words.process.wait(60) == 1
    said = words.drivers.log_path(WORDS).read_text()
    assert f"the JVM of {WORDS} was ended by signal 9" in said and "SWITCHYARD_DRIVER_HEAP_MB (" in said
    words.run()
    assert words.ledger().clean


@pytest.mark.long
def test_a_driver_that_is_asked_to_stop_stops_at_a_boundary(settings: Settings, words: Words) -> None:
    words.run()
    topics, registry = topics_of(words.context, WORDS), words.context.registry
    with producing(settings, sources_for("word-count", LIVE), LIVE_RATE) as end_input:
        running = freeze(settings, words.process, topics)
        jvm = [found for pid in children(words.process.pid) if (found := ProcessRef.of(pid)) is not None]
        assert jvm
        words.process.send_signal(signal.SIGTERM)
        os.killpg(words.process.pid, signal.SIGCONT)
        until("the lease has not ended", lambda: registry.state().releases[WORDS].lease_ended, 90, poll_s=0.005)
        # from then on nothing may write to what belongs to another driver
        assert not [each for each in jvm if each.alive()]
        assert words.process.wait(90) == 0, words.drivers.log(WORDS)[-3000:]
        end_input()
    # the running batch was finished, in Kafka and in Spark's log
    assert open_transactions(settings, topics) == []
    batch = committed(settings, WORDS).boundary.batch_id
    assert batch >= running, "it was given up"
    assert (release_folder(settings, WORDS) / f"g1.t{words.token}" / "commits" / str(batch)).exists()
    assert words.holder() is None
    with words.run_as_a_thread():
        assert words.ledger().clean


@pytest.mark.long
def test_a_lost_checkpoint_stops_the_driver_until_it_is_restored(settings: Settings, words: Words) -> None:
    words.end()
    with words.run_as_a_thread():
        words.await_rest()
    before = committed(settings, WORDS)
    folder = release_folder(settings, WORDS)
    aside = folder.with_name("aside")
    folder.rename(aside)
    size = words.drivers.log_path(WORDS).stat().st_size if words.drivers.log_path(WORDS).exists() else 0
    assert words.drivers.spawn(WORDS).wait(120) == 1
    said = words.drivers.log_path(WORDS).read_bytes()[size:].decode()
    assert f"checkpoint {folder} of {WORDS} is gone" in said
    assert committed(settings, WORDS) == before
    assert list(folder.iterdir()) == []
    folder.rmdir()
    aside.rename(folder)
    with words.run_as_a_thread():
        send(settings, LINES, "back again")
        assert words.ledger().clean


# -- an app's function


POISON = """
from pyspark.sql import functions as F

from pipelines.model import AppendStream, Stream, Text, app


def check(word):
    if word == "poison":
        raise ValueError("this word is poison")
    return word


@app(name="careful", inputs={"words": Stream(topic="poison", value=Text("word"))}, result=AppendStream(key=("word",)))
def careful(words, settings):
    return words.select("word", F.udf(check, "string")("word").alias("checked"))
"""


def test_a_poison_record_fails_the_release_and_the_error_names_its_range(
    broker: Settings, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    settings = broker.model_copy(update={"trigger_s": 0.1, "heartbeat_s": 0.2})
    ensure_topic(settings, "poison", 2, INPUT)
    drivers = Threads(settings)
    with ExitStack() as stack:
        context = stack.enter_context(operator(settings, drivers))
        stack.callback(drivers.end)
        name = stage(context, "careful", 1, code(tmp_path / "tree", careful=POISON))
        send(settings, "poison", "fine", "also fine", partition=1)
        start(context, name)
        until("no result", lambda: newest_progress(settings, name), BATCH_TIMEOUT_S)
        caplog.set_level(logging.ERROR, "switchyard.driver")
        send(settings, "poison", "poison", partition=1)
        until("it does not end", lambda: not drivers.alive(name), BATCH_TIMEOUT_S)
        _assert_failed_of_poison(context, name)
    # at the first try, not when it gives up
    tries = [re.sub(r"(?s)\n.*", "", record.getMessage()) for record in caplog.records if "try" in record.getMessage()]
    assert [re.match(rf"{re.escape(name)}, try (\d) of 3", each).groups() for each in tries] == [("1",), ("2",), ("3",)]  # type: ignore[union-attr]
    assert all(
        re.search(r"batch \d+ \(poison\[1\] 2-2\): .*ValueError: this word is poison", each) for each in tries
    ), tries


def _assert_failed_of_poison(context: Context, name: str) -> None:
    settings = context.settings
    release = context.registry.state().releases[name]
    assert release.state == "failed"
    assert (
        release.failure is not None and "poison[1] 2-2" in release.failure and "this word is poison" in release.failure
    )
    assert release.lease_ended
    beat = latest_heartbeats(settings)[name]
    assert beat.state == "failed" and beat.error is not None and "this word is poison" in beat.error
    assert committed(settings, name).boundary.position.sources == {"words": {0: 0, 1: 2}}
    assert len(records(settings, result_topic(name, 1))) == 2
