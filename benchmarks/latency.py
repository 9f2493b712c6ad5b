"""How long a record waits until its results are committed, at a steady rate, and what a release costs meanwhile."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from benchmarks.hydrating import cpu_s, processes_of
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.check import check
from orchestration.operations.procedures.wait import wait_ready
from orchestration.sources.base import Options, Record, Source
from orchestration.sources.catalog import source_for
from orchestration.sources.run import produce
from pipelines.kafka.client import producer
from pipelines.kafka.clock import now_ms
from pipelines.kafka.log import LogReader
from pipelines.model.names import progress_topic
from pipelines.model.progress import read_progress
from pipelines.processes import rss_bytes
from pipelines.settings import Settings

APPS = ("stock-stats", "large-orders")
PER_S, SECONDS = 500, 60.0
# what a new driver still has to compile takes longer
WARM_UP_S = 30.0
HISTORY = 100_000
_SLICE_S = 0.01
_IDLE_S = 30.0
# until what was sent last is committed
_REST_S = 5.0


class Sent(threading.Thread):
    """Sends `PER_S` records a second. Keeps when it sent each one, seconds since the epoch: partition -> offset -> time."""

    def __init__(self, settings: Settings, source: Source, after_ms: int) -> None:
        super().__init__(name="input", daemon=True)
        self._producer = producer(settings)
        self._topic = source.topic
        self._records = chain.from_iterable(source.blocks(after_ms))
        self._stopped = threading.Event()
        self.at: dict[int, dict[int, float]] = {}

    def run(self) -> None:
        due = time.time()
        while not self._stopped.is_set():
            due += _SLICE_S
            for _ in range(int(PER_S * _SLICE_S)):
                self._send(next(self._records))
            self._producer.poll(max(0.0, due - time.time()))
            time.sleep(max(0.0, due - time.time()))

    def _send(self, record: Record) -> None:
        key, value, _ = record
        now = time.time()

        def sent(error: Any, message: Any) -> None:
            if error is None:
                self.at.setdefault(message.partition(), {})[message.offset()] = now

        self._producer.produce(self._topic, value, key, timestamp=int(now * 1000), on_delivery=sent)

    def stop(self) -> None:
        self._stopped.set()
        self.join(10)
        self._producer.flush(10)


class Committed(threading.Thread):
    """Reads what a release commits. Keeps (when it could be read, seconds since the epoch; partition -> end) of each batch."""

    def __init__(self, settings: Settings, release: str, source: str) -> None:
        super().__init__(name="committed", daemon=True)
        self._reader = LogReader(settings, progress_topic(release), start=None)
        self._source = source
        self._stopped = threading.Event()
        self.batches: list[tuple[float, Mapping[int, int]]] = []

    def run(self) -> None:
        while not self._stopped.is_set():
            for value in self._reader.poll(0.05):
                position = read_progress(value).boundary.position
                self.batches.append((time.time(), position.sources[self._source]))

    def stop(self) -> None:
        self._stopped.set()
        self.join(10)
        self._reader.close()


def latencies_s(
    sent: Mapping[int, Mapping[int, float]],
    batches: Sequence[tuple[float, Mapping[int, int]]],
    since: float,
    until: float,
) -> list[float]:
    """How long each record that was sent between `since` and `until` waited for the first batch that read it, sorted.

    Raises ValueError if one was not read.
    """
    found = []
    for partition, at in dict(sent).items():
        ends = [end.get(partition, 0) for _, end in batches]
        # more are sent meanwhile
        for offset, sent_at in dict(at).items():
            if since <= sent_at < until:
                number = bisect_right(ends, offset)
                if number == len(batches):
                    raise ValueError(f"offset {offset} of partition {partition} was not read")
                found.append(batches[number][0] - sent_at)
    return sorted(found)


def measure(context: Context, rounds: int, apps: Sequence[str]) -> dict[str, Any]:
    """App -> what its live release does with `PER_S` records a second, in each round of `SECONDS`.

    `p50_ms`, `p99_ms`: from the sending of a record until its results could be read. `batches_per_s`. `cores`: what the
    release used meanwhile; `idle_cores`: without input. `memory_mb`: of its processes, resident.
    """
    return {app: _measure_app(context, app, rounds) for app in apps}


def _measure_app(context: Context, app: str, rounds: int) -> dict[str, Any]:
    settings, name = context.settings, f"{app}.v1"
    source = source_for(app, Options(per_second=PER_S))
    produce(settings, source, history=HISTORY)
    execute(context, plan_stage(context, app, version=1))
    execute(context, plan_start(context, name))
    wait_ready(context, name, for_s=1.0, timeout_s=300)
    check(context, name)
    execute(context, plan_promote(context, name))
    release = context.registry.state().releases[name]
    [input_name] = release.spec.inputs
    assert release.lease is not None
    leader = release.lease.holder.pid
    report: dict[str, Any] = {"p50_ms": [], "p99_ms": [], "batches_per_s": [], "cores": []}
    sent, committed = Sent(settings, source, now_ms()), Committed(settings, name, input_name)
    committed.start()
    sent.start()
    try:
        time.sleep(WARM_UP_S)
        for _ in range(rounds):
            began, used_s = time.time(), cpu_s(leader)
            time.sleep(SECONDS)
            ended = time.time()
            cores = (cpu_s(leader) - used_s) / (ended - began)
            batches = sum(began <= at < ended for at, _ in committed.batches)
            time.sleep(_REST_S)
            waited = latencies_s(sent.at, [*committed.batches], began, ended)
            report["p50_ms"].append(round(1000 * waited[len(waited) // 2]))
            report["p99_ms"].append(round(1000 * waited[len(waited) * 99 // 100]))
            report["batches_per_s"].append(round(batches / (ended - began), 2))
            report["cores"].append(round(cores, 2))
        sent.stop()
        time.sleep(_REST_S)
        began, used_s = time.time(), cpu_s(leader)
        time.sleep(_IDLE_S)
        report["idle_cores"] = round((cpu_s(leader) - used_s) / (time.time() - began), 3)
        report["memory_mb"] = memory_mb(leader)
    finally:
        sent.stop()
        committed.stop()
        execute(context, plan_stop(context, name))
    return report


def memory_mb(leader: int) -> int:
    """Resident memory of the processes of a session. What two of them share counts twice."""
    return round(sum(rss_bytes(pid) or 0 for pid, _ in processes_of(leader)) / 2**20)
