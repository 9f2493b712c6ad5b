"""A cluster whose releases live for the length of a module: input that keeps coming, followers, the terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

from demo.ledger.reader import read
from orchestration.commands.follow import as_object
from orchestration.launchers.local import Launcher, LocalLauncher
from orchestration.local.broker import EmbeddedBroker
from orchestration.local.process import ProcessRef
from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.lifecycle import live_release
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.plans.plan import Plan
from orchestration.operations.procedures.check import check
from orchestration.operations.procedures.wait import wait_ready
from orchestration.sources import Faults, Options, Source, produce, sources_for
from pipelines.errors import Unavailable
from pipelines.follow import LiveConsumer
from pipelines.kafka.offsets import end_offsets
from pipelines.kafka.registry import Registry
from pipelines.kafka.topics import topic_names
from pipelines.model.names import REGISTRY_TOPIC, result_topic
from pipelines.model.registry import RegistryState, Release
from pipelines.settings import Settings
from tests.e2e.harness import at_rest, producing
from tests.shared.operators import Operators
from tests.shared.ports import port_of
from tests.shared.terminal import Said, Terminal
from tests.shared.threads import Threads, patient, trials_in

ROOT = Path(__file__).resolve().parents[2]
# a batch of the live release is about a second of input; the candidate reads all there is
SMALL, LARGE = 2_000, 400_000
DISORDER = Faults(out_of_order=0.2, late=0.02, duplicate=0.002, malformed=0.001, tombstone=0.0005)
# a driver here lives for a minute: the optimizing compiler costs more than it gains
SHORT_LIVED = {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.level=warn"}
BRISK: dict[str, Any] = {
    "target_latency_s": 0.0,
    "trigger_s": 0.7,
    "standby_trigger_s": 1.5,
    "heartbeat_s": 0.3,
    "switch_timeout_s": 45,
}


class Cluster:
    """Releases, followers and commands on the session's broker, all in this process. It ends everything that it starts.

    `spark`: the session of drivers, checks and trials; None: only questions, plans and refusals. `changes`: of the
    settings.
    """

    def __init__(self, broker: Settings, folder: Path, spark: Callable[[], Any] | None = None, **changes: Any) -> None:
        self.settings = broker.model_copy(
            update={**BRISK, "driver_heap_mb": 512, "boot_timeout_s": 300, "spark": SHORT_LIVED, **changes}
        )
        self.folder = folder
        self.spark = spark
        self.drivers = Threads(self.settings)
        self.registry = Registry(self.settings, actor="tester")
        self._operators: Operators | None = None

    def close(self) -> None:
        if self._operators is not None:
            self._operators.end()
        self.drivers.end()
        self.registry.close()

    # -- operations, in this process

    @property
    def state(self) -> RegistryState:
        return self.registry.state()

    def context(self, **changes: Any) -> Context:
        """A context with `changes` of the settings, for its plans and its drivers."""
        settings = self.settings.model_copy(update=changes)
        return Context(
            settings=settings,
            registry=self.registry,
            launcher=self.launcher(settings),
            spark=self.spark,
            say=say,
            sleep=patient,
        )

    def launcher(self, settings: Settings) -> Launcher:
        """The launcher of drivers with `settings`."""
        return self.drivers.with_settings(settings)

    def run(self, plan: Plan, **changes: Any) -> Plan:
        execute(self.context(**changes), plan)
        return plan

    def stage(self, app: str, version: int, **options: Any) -> Release:
        with self.trials():
            self.run(plan_stage(self.context(), app, version=version, **options))
        return self.state.releases[f"{app}.v{version}"]

    @contextmanager
    def trials(self) -> Iterator[None]:
        """While the block runs, apps are tried in the session of the tests."""
        assert self.spark is not None
        with trials_in(self.spark()):
            yield

    def start(self, name: str, *, batch: int) -> None:
        context = self.context(max_records_per_batch=batch)
        execute(context, plan_start(context, name))

    def hydrate(self, app: str, version: int, *, batch: int, **options: Any) -> Release:
        """Stages a release, starts it with batches of at most `batch` records, and waits until it is ready.

        Skips what is done already.
        """
        name = f"{app}.v{version}"
        if name not in self.state.releases:
            self.stage(app, version, **options)
        if self.state.releases[name].wanted == "stopped":
            self.start(name, batch=batch)
        if self.state.releases[name].ready is None:
            wait_ready(self.context(), name, for_s=0.5, timeout_s=240)
        return self.state.releases[name]

    def stop(self, *names: str) -> None:
        for name in names:
            self.run(plan_stop(self.context(), name))

    def make_live(self, app: str, version: int, *, instead: str | None = None) -> None:
        """Compares and promotes a release. `instead`: the live release; None if the app has none yet."""
        live = live_release(self.state, app)
        if (live.name if live else None) == instead:
            if self.state.releases[f"{app}.v{version}"].spec.suite is not None:
                check(self.context(), f"{app}.v{version}")
            self.run(plan_promote(self.context(), app, version=version))

    def until(self, what: str, probe: Callable[[], object], timeout_s: float = 150, poll_s: float = 0.1) -> None:
        self.context().until(what, probe, timeout_s=timeout_s, poll_s=poll_s)

    def position(self, name: str) -> dict[str, dict[int, int]]:
        """Source -> partition -> offset that a release has read up to; zeros before its first batch."""
        progress = self.context().progress(name)
        return {s: dict(p) for s, p in progress.boundary.position.sources.items()} if progress else {}

    def settle(self, name: str, topic: str) -> None:
        """Waits until a release has read `topic` to its end and has nothing left to do."""
        inputs = {source: of.topic for source, of in self.state.releases[name].spec.inputs.items() if of.topic == topic}
        self.until(
            f"{name} has not read {topic} to its end", lambda: at_rest(self.settings, name, inputs, self.registry)
        )

    # -- input

    def load(self, app: str, records: int, per_second: int) -> None:
        """History with more disorder than usual."""
        self.load_from(sources_for(app, _options(per_second)), records)

    def load_from(self, sources: Sequence[Source], records: int) -> None:
        produce(self.settings, sources, history=records)

    @contextmanager
    def producing(self, app: str, rate: float, per_second: int) -> Iterator[None]:
        """Produces live input, `rate` records a second, while the block runs."""
        with self.producing_from(sources_for(app, _options(per_second)), rate):
            yield

    @contextmanager
    def producing_from(self, sources: Sequence[Source], rate: float) -> Iterator[None]:
        topics = [source.topic for source in sources]

        def end() -> Mapping[str, Mapping[int, int]]:
            return end_offsets(self.settings, topics)

        before = end()
        with producing(self.settings, sources, rate) as end_input:
            # otherwise a short block would end before the first record
            self.until("no input comes", lambda: end() != before)
            yield
            end_input()

    # -- the terminal

    def cli(self, *arguments: object, **environment: str) -> Said:
        """Runs `switchyard` in this process."""
        return Terminal(self.settings, self.folder, self.drivers, self.spark).run(*arguments, **environment)

    @property
    def operators(self) -> Operators:
        """Starts commands in processes of their own: for those that die, and for two at once."""
        if self._operators is None:
            assert self.spark is not None
            self._operators = Operators(self.settings, self.folder, self.drivers, self.spark)
        return self._operators

    def world(self) -> tuple[frozenset[str], int]:
        """What a dry run must not change: the topics, and the length of the registry."""
        # Kafka creates its own topics when they are first needed
        topics = frozenset(name for name in topic_names(self.settings) if not name.startswith("__"))
        # the first entry creates it
        there = REGISTRY_TOPIC in topics
        return topics, end_offsets(self.settings, [REGISTRY_TOPIC])[REGISTRY_TOPIC][0] if there else 0

    def last_offsets(self, name: str, result: str = "") -> Mapping[int, int]:
        """Partition -> offset of the last committed record of a release's result."""
        topic = result_topic(name, self.state.releases[name].generation, result)
        return {r.partition: r.offset for r in read(self.settings.bootstrap, topic)}


class Told(Threads):
    """Tells of each driver what a user is told: a process, and its log."""

    def launch(self, release: str, *, force: bool = False, settle: bool = False) -> str:
        super().launch(release, force=force, settle=settle)
        pid = self._started[-1].pid if release in self.processes else os.getpid()
        return f"process {pid}, log {self.log_path(release)}"

    def log_path(self, release: str) -> Path:
        return LocalLauncher(self._settings).log_path(release)


class OwnBroker(Cluster):
    """A cluster with a broker of its own, which can be killed.

    A command that runs as a process starts its drivers as processes.
    """

    def __init__(self, folder: Path, port: str, spark: Callable[[], Any]) -> None:
        settings = Settings(state_dir=folder / "state", broker_port=port_of(port), broker_heap_mb=512)
        self.broker = EmbeddedBroker(settings)
        self.broker.start(180)
        try:
            super().__init__(settings, folder, spark)
        except BaseException:
            self.broker.stop()
            raise
        self.drivers = Told(self.settings)

    def close(self) -> None:
        drivers = [ref for name in self.state.releases if (ref := self.process_of(name)) is not None]
        for driver in drivers:
            os.kill(driver.pid, signal.SIGTERM)
        for driver in drivers:
            driver.terminate(20)
        super().close()
        self.broker.stop()

    def process_of(self, name: str) -> ProcessRef | None:
        """The process of a driver; None: it is a thread, or has ended."""
        release = self.state.releases[name]
        if release.lease is None or release.lease_ended or release.lease.holder.pid == os.getpid():
            return None
        return ProcessRef.of(release.lease.holder.pid)

    def as_process(self, *arguments: object, **environment: str) -> Said:
        """Runs `switchyard` as a process, whose outputs go to one file. Fails if it prints a traceback."""
        done = subprocess.run(
            [sys.executable, "-m", "orchestration.cli", *map(str, arguments)],
            env={**self.settings.child_environment(), **environment}, cwd=self.folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stdout, done.stdout
        return Said(done.returncode, done.stdout, "", done.stdout)


class Follower:
    """A consumer of an alias with its own group. A log keeps what `follow --json` would print, across restarts."""

    def __init__(self, cluster: Cluster, alias: str, group: str, result: str = "") -> None:
        self.cluster, self.alias, self.group, self.result = cluster, alias, group, result
        self.log = cluster.folder / f"{group}.jsonl"
        self.log.touch()
        self._lines: list[dict[str, Any]] = []
        self._parsed_bytes = 0
        self._over = Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Follower:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Resumes where it was. Does nothing if it runs."""
        if self._thread is not None:
            return
        self._over.clear()
        self._thread = threading.Thread(target=self._follow, name=f"follower {self.group}")
        self._thread.start()

    def stop(self) -> None:
        """Stops it, and commits what it has delivered."""
        if self._thread is not None:
            self._over.set()
            self._thread.join(60)
            assert not self._thread.is_alive() and self._error is None, self._error
            self._thread = None

    def _follow(self) -> None:
        try:
            with (
                self.log.open("a", buffering=1) as lines,
                LiveConsumer(
                    self.alias, group=self.group, result=self.result or None, settings=self.cluster.settings
                ) as consumer,
            ):
                committed = None
                while not self._over.is_set():
                    record = consumer.poll(0.1)
                    if record is not None:
                        lines.write(json.dumps(as_object(record)) + "\n")
                    elif consumer.position != committed:
                        # a restarting broker may refuse a commit: the next round tries again
                        with suppress(Unavailable):
                            consumer.commit()
                            committed = consumer.position
                consumer.commit()
        except BaseException as error:
            self._error = error
            raise

    def lines(self) -> Sequence[dict[str, Any]]:
        """The records of the log. Each line is parsed once, because tests ask often."""
        with self.log.open("rb") as log:
            log.seek(self._parsed_bytes)
            for line in log:
                if line.endswith(b"\n"):
                    self._lines.append(json.loads(line))
                    self._parsed_bytes += len(line)
        return self._lines

    @property
    def number(self) -> int:
        """The switch of the newest records; 0 before the first switch."""
        return max((line["switch"] for line in self.lines()), default=0)

    def await_switch(self, number: int, timeout_s: float = 150) -> None:
        """Waits for the first record of the result that switch `number` led to."""
        self.cluster.until(
            f"{self.group} got nothing of switch {number}",
            lambda: any(x["switch"] == number and x["phase"] == "result" for x in self.lines()),
            timeout_s,
        )

    def await_end(self, name: str) -> None:
        """Waits until it has delivered the result of `name` to its last record."""
        last = self.cluster.last_offsets(name, self.result)
        topic = result_topic(name, 1, self.result)

        def there() -> bool:
            got = {x["partition"]: x["offset"] for x in self.lines() if x["topic"] == topic}
            return all(got.get(p, -1) >= offset for p, offset in last.items())

        self.cluster.until(f"{self.group} has not read {topic} to its end", there)


def say(line: str) -> None:
    """Prints an event, for the reader of a failed test's output."""
    print(f"  {line}")


def folded(settings: Settings, topic: str, until: Mapping[int, int]) -> dict[str, Any]:
    """Key -> last value of a table's result up to the offsets `until`. Shares no code with the diff."""
    fold: dict[str, Any] = {}
    for record in read(settings.bootstrap, topic, until):
        assert record.key is not None
        fold[record.key.decode()] = None if record.value is None else json.loads(record.value)
    return {key: value for key, value in fold.items() if value is not None}


def assert_nothing_differs(found: Comparison, *, at_least: int) -> None:
    """Asserts that two results are equal and have `at_least` keys or records."""
    assert (found.only_live, found.only_new, found.changed) == (0, 0, 0), found
    assert found.identical >= at_least
    assert not found.columns and not found.samples and found.ratio == 0
    assert found.live_late_dropped == found.new_late_dropped == 0
    assert found.live_watermark_ms == found.new_watermark_ms


def _options(per_second: int) -> Options:
    return Options(seed=7, per_second=per_second, faults=DISORDER)
