"""What a driver's heartbeats say: its state, its speed, its lag, and the memory that it uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka.admin import AdminClient

from pipelines.engine.heart import PROBE_TIMEOUT_S, Probe
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.query import Query
from pipelines.kafka.clock import now_ms
from pipelines.kafka.offsets import end_of
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Counts, Flagging, Heartbeat, Pausing, Progress
from pipelines.processes import rss_bytes
from pipelines.settings import Settings


@dataclass(slots=True)
class DriverStatus:
    """What a driver says about itself between boundaries. The driver's thread writes it, the heartbeat's reads it."""

    state: str = "starting"
    error: str | None = None
    pausing: Pausing | None = None
    flagging: Flagging | None = None


class Telemetry:
    """Makes the heartbeats of a driver from its start on. It leaves out what isn't there yet or no longer."""

    def __init__(self, settings: Settings, name: str, token: int, status: DriverStatus) -> None:
        self._settings = settings
        self._name = name
        self._token = token
        self._status = status
        self._query: Query | None = None
        self._batch_records: int | None = None
        self._jvm_pid = 0
        self._jvm_ended = False
        self._heap: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._lag: Callable[[], int | None] = lambda: None
        self._copies_fail_s: Callable[[], float | None] = lambda: None

    def watch_jvm(self) -> None:
        """Reports the memory of Spark's JVM from here on."""
        self._jvm_pid = int(java_class("java.lang.ProcessHandle").current().pid())
        runtime = java_class("java.lang.Runtime").getRuntime()
        self._heap = lambda: (int(runtime.totalMemory() - runtime.freeMemory()), int(runtime.maxMemory()))

    def watch_query(self, query: Query, batch_records: int) -> None:
        """Reports `query` from here on. `batch_records`: the most that one of its first batches reads."""
        self._batch_records = batch_records
        self._query = query

    def watch_lag(self, lag: Callable[[], int | None]) -> None:
        """Reports the lag from here on."""
        self._lag = lag

    def watch_copies(self, fail_s: Callable[[], float | None]) -> None:
        """Reports from here on for how long copies of the checkpoint have failed."""
        self._copies_fail_s = fail_s

    def jvm_ends(self) -> None:
        """Asks the JVM nothing from here on."""
        self._jvm_ended = True

    def heartbeat(self) -> Heartbeat:
        """The heartbeat to send now."""
        query, status = self._query, self._status
        last = query.sink.last if query else None
        report = query.last_progress() if query and not self._jvm_ended else {}
        # Spark's own duration includes the sink's wait at the end of a batch
        batch_s = query.sink.batch_s if query else 0.0
        used, limit = self._heap() if not self._jvm_ended else (0, 0)
        return Heartbeat(
            release=self._name,
            generation=query.sink.destination.generation if query else 0,
            token=self._token,
            host=self._settings.host,
            pid=os.getpid(),
            at_ms=now_ms(),
            state=status.state,
            batch_id=last.boundary.batch_id if last else -1,
            batch_records=self._batch_records if query else None,
            behind_records=None if query and query.is_bounded(report.get("batchId", -1)) else unread_records(report),
            lag_records=self._lag(),
            input_records_per_s=_rate(report, "inputRowsPerSecond"),
            processed_records_per_s=last.batch.rows_in / batch_s
            if last and batch_s and report.get("numInputRows")
            else 0.0,
            best_records_per_s=query.sink.best_records_per_s if query else 0.0,
            batch_ms=int(batch_s * 1000),
            watermark_ms=last.boundary.watermark_ms if last else None,
            total=last.total if last else Counts(),
            rss_bytes=sum(rss_bytes(pid) or 0 for pid in (os.getpid(), self._jvm_pid)),
            heap_used_bytes=used,
            heap_max_bytes=limit,
            copies_fail_s=self._copies_fail_s(),
            error=status.error,
            pausing=status.pausing,
            flagging=status.flagging,
        )


def batch_number(last: Progress | None) -> str:
    """The number of the last committed batch, for log lines."""
    return "none" if last is None else str(last.boundary.batch_id)


def lag_probe(
    settings: Settings,
    client: AdminClient,
    position: Callable[[], SourcePosition],
    inputs: Mapping[str, str],
    partitions: Mapping[str, int],
) -> Probe[int]:
    """Asks for the lag: records from `position` to the end of the input. None if Kafka doesn't answer in time.

    `inputs`: source name -> topic. `partitions`: source name -> number of partitions of its topic.
    """
    asking = settings.model_copy(update={"request_timeout_s": PROBE_TIMEOUT_S})

    def lag() -> int | None:
        here = position()
        ends = {n: end_of(asking, t, partitions[n], client=client) for n, t in inputs.items()}
        return SourcePosition(sources=ends).records_since(here)

    return Probe("the lag", lag)


def unread_records(report: Mapping[str, Any]) -> int | None:
    """Records that were there when the batch of Spark's report was planned, minus those that it read.

    None: Spark does not say. For a batch that was planned before a restart, Spark doesn't know the latest offset.
    """
    ends = [(source.get("latestOffset"), source.get("endOffset")) for source in report.get("sources", [])]
    if not ends or not all(isinstance(latest, dict) and isinstance(end, dict) for latest, end in ends):
        return None
    return sum(
        max(0, int(offset) - int(end.get(topic, {}).get(partition, 0)))
        for latest, end in ends
        for topic, offsets in latest.items()
        for partition, offset in offsets.items()
    )


def _rate(report: Mapping[str, object], name: str) -> float:
    value = report.get(name)
    # Spark reports NaN and Infinity for a first batch
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0.0
