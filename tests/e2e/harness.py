"""Drivers and followers as processes, for tests that kill them.

A registry is one topic of a cluster, so a module has the session's broker to itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

import pipelines.apps
from orchestration.launchers.local import Launcher, LocalLauncher
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.sources import Source, produce
from pipelines.engine.checkpoint import Checkpoint
from pipelines.engine.copies import whole_checkpoint
from pipelines.kafka.client import admin, consumer
from pipelines.kafka.offsets import end_of, end_offsets
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.registry import Registry
from pipelines.model.names import progress_topic
from pipelines.model.progress import Progress
from pipelines.settings import Settings
from tests.shared.waiting import until

# a boot takes 8 s on two idle cores, and minutes on two busy ones
BOOT_TIMEOUT_S = 300.0

# drivers that are as small and start as fast as possible
SMALL: dict[str, Any] = {
    "driver_heap_mb": 512,
    "driver_cores": 2,
    "target_latency_s": 0.0,
    "trigger_s": 0.25,
    "heartbeat_s": 0.5,
    "boot_timeout_s": BOOT_TIMEOUT_S,
    # a driver here lives for seconds: the optimizing compiler costs more than it gains
    "spark": {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dlog4j2.level=warn"},
}


class Drivers(LocalLauncher):
    """Starts drivers as the local launcher does, and keeps their processes."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._all: list[tuple[str, subprocess.Popen[bytes]]] = []

    def spawn(self, release: str, *, force: bool = False, settle: bool = False) -> subprocess.Popen[bytes]:
        process = super().spawn(release, force=force, settle=settle)
        self._all.append((release, process))
        return process

    def log(self, release: str) -> str:
        return self.log_path(release).read_text(errors="replace")

    def of(self, release: str) -> subprocess.Popen[bytes]:
        """The process of `release` that was started last."""
        return next(process for name, process in reversed(self._all) if name == release)

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """A process that has ended and never was the release's driver. `of` then returns the one before it."""
        assert process.poll() is not None
        self._all = [(name, each) for name, each in self._all if each is not process]

    def end(self) -> None:
        """Kills every process that still runs, with its JVM."""
        for _, process in self._all:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)


@contextmanager
def operator(settings: Settings, drivers: Launcher, **more: Any) -> Iterator[Context]:
    """A context of its own, because threads can't share Kafka's clients."""
    with Registry(settings, actor="test") as registry:
        yield Context(settings=settings, registry=registry, launcher=drivers, **more)


def stage(context: Context, app: str, version: int, code_dir: Path, **options: Any) -> str:
    """Stages a release and returns its name."""
    plan = plan_stage(context, app, version=version, code_dir=code_dir, **options)
    execute(context, plan)
    return plan.releases[0]


def start(context: Context, release: str, *, force: bool = False) -> None:
    execute(context, plan_start(context, release, force=force))


def stop(context: Context, release: str) -> None:
    execute(context, plan_stop(context, release))


def code_without_suite(folder: Path, module: str, source: Path | None = None) -> Path:
    """A copy of an app's module whose result has no suite, so a promotion waits for no check."""
    folder.mkdir(parents=True)
    path = (source or Path(pipelines.apps.__path__[0])) / f"{module}.py"
    text = path.read_text()
    kept = "".join(line for line in text.splitlines(keepends=True) if not line.strip().startswith("suite="))
    assert kept != text
    (folder / path.name).write_text(kept)
    return folder


def open_transactions(settings: Settings, topics: Mapping[str, int], client: Any = None) -> list[str]:
    """Topics with records of a transaction that was neither committed nor aborted at the time of this call.

    It reads the high watermark first, then the last stable offset: records between the two belong to an open transaction.
    """
    client = client or admin(settings)
    wanted = {TopicPartition(t, p): OffsetSpec.latest() for t, count in topics.items() for p in range(count)}
    high, stable = (
        {(p.topic, p.partition): future.result().offset for p, future in
         client.list_offsets(wanted, isolation_level=level, request_timeout=10).items()}
        for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
    )  # fmt: skip
    return sorted({topic for (topic, p), offset in high.items() if offset > stable[topic, p]})


def uncommitted(settings: Settings, topics: Mapping[str, int]) -> Consumer:
    """A consumer of the records that come from now on, also of open transactions."""
    client = consumer(settings, isolation_level="read_uncommitted", fetch_wait_max_ms=500)
    ends = {topic: end_of(settings, topic, count, committed=False) for topic, count in topics.items()}
    client.assign([TopicPartition(topic, p, offset) for topic, end in ends.items() for p, offset in end.items()])
    return client


def topics_of(context: Context, release: str) -> dict[str, int]:
    """The topics that a release's transactions write to, with their numbers of partitions."""
    known = context.registry.state().releases[release]
    return {known.result_topics[""]: known.spec.partitions, progress_topic(release): 1}


def committed(settings: Settings, release: str) -> Progress:
    """The newest progress record."""
    found = newest_progress(settings, release)
    assert found is not None, f"{release} has no progress"
    return found


def lag_records(settings: Settings, release: str, inputs: Mapping[str, str]) -> int:
    """Input records that `release` has not read. `inputs`: source name -> topic."""
    return _lag_behind(newest_progress(settings, release), inputs, end_offsets(settings, inputs.values()))


def _lag_behind(progress: Progress | None, inputs: Mapping[str, str], ends: Mapping[str, Mapping[int, int]]) -> int:
    return sum(
        end - (progress.boundary.position.sources[name].get(partition, 0) if progress else 0)
        for name, topic in inputs.items()
        for partition, end in ends[topic].items()
    )


def at_rest(settings: Settings, release: str, inputs: Mapping[str, str], registry: Registry | None = None) -> bool:
    """Whether a release has read all of its input, and another batch would change nothing.

    That also holds after a batch that moved no watermark. Its progress record could not know that, but its checkpoint does.
    `registry`: its clients ask, instead of new ones.
    """
    kept, client = (registry.kept, registry.cluster.client) if registry is not None else (None, None)
    progress = newest_progress(settings, release, kept=kept)
    if progress is None or _lag_behind(progress, inputs, end_offsets(settings, inputs.values(), client=client)) > 0:
        return False
    if progress.boundary.settled:
        return True
    folder = whole_checkpoint(settings, release, progress.generation)
    if folder is None:
        # a driver that starts renames it just now, or has not copied it yet
        return False
    checkpoint = Checkpoint(folder, inputs, release)
    batch_id = progress.boundary.batch_id
    return checkpoint.committed(batch_id) and checkpoint.settled(batch_id)


class Follower:
    """`switchyard follow --json` as a process; its lines go to a file."""

    def __init__(self, settings: Settings, alias: str, *options: str) -> None:
        self.path = settings.state_dir / f"follow-{alias}.jsonl"
        self._errors = self.path.with_suffix(".err")
        command = [sys.executable, "-m", "orchestration.cli", "follow", alias, "--json", *options]
        with self.path.open("wb") as lines, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(command, env=settings.child_environment(), stdout=lines, stderr=errors)

    def lines(self) -> list[dict[str, Any]]:
        """What it has printed so far, whole lines only."""
        text = self.path.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def come_to_rest(self, quiet_s: float = 3.0, timeout_s: float = 60.0) -> None:
        """Waits until it has printed nothing for `quiet_s`."""
        size, since = -1, time.monotonic()

        def still() -> bool:
            nonlocal size, since
            assert self._process.poll() is None, self._errors.read_text()
            now = self.path.stat().st_size
            if now != size:
                size, since = now, time.monotonic()
            return time.monotonic() - since > quiet_s

        until("the follower has not come to rest", still, timeout_s, poll_s=0.2)

    def end(self) -> None:
        """Stops it as Ctrl-C does."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)


@contextmanager
def producing(settings: Settings, sources: Sequence[Source], rate: float) -> Iterator[Callable[[], None]]:
    """Produces live input, `rate` records a second, while the block runs.

    Yields a function that stops it and waits for the broker's acknowledgments.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(1, "live input") as pool:
        job = pool.submit(produce, settings, sources, rate=rate, stopped=stopped.is_set)

        def end() -> None:
            stopped.set()
            assert job.result(60).records > 0

        try:
            yield end
        finally:
            stopped.set()
