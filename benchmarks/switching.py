"""How long consumers wait for the other version, on a result of many keys, all of which differ."""

from __future__ import annotations

import json
import statistics
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.command import Command
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.diff import diff
from orchestration.operations.procedures.wait import wait_ready
from pipelines.follow import LiveConsumer
from pipelines.kafka.client import producer
from pipelines.kafka.progress import progress_history
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.model.entries import Opened
from pipelines.settings import Settings

APP, OLD, NEW, TOPIC = "many-keys", "many-keys.v1", "many-keys.v2", "numbers"
LIVE_PER_S = 500
HERE = Path(__file__).parent / "many_keys"


class Input(threading.Thread):
    """Goes on producing `LIVE_PER_S` records a second over the keys, until `stop`."""

    def __init__(self, settings: Settings, keys: int) -> None:
        super().__init__(name="input", daemon=True)
        self._producer = producer(settings)
        self._keys = keys
        self._stopped = threading.Event()

    def load(self) -> None:
        """One record for every key."""
        for number in range(self._keys):
            self._send(number)
        self._producer.flush()

    def _send(self, number: int) -> None:
        while True:
            try:
                self._producer.produce(TOPIC, json.dumps({"n": number}), f"id-{number % self._keys}")
                return
            except BufferError:
                self._producer.poll(0.1)

    def run(self) -> None:
        number = self._keys
        while not self._stopped.wait(0.1):
            for _ in range(LIVE_PER_S // 10):
                self._send(number)
                # spread over the keys: a prime steps through all of them
                number += 7919
            self._producer.poll(0)

    def stop(self) -> None:
        self._stopped.set()
        self.join(10)
        self._producer.flush(10)


class Consumer(threading.Thread):
    """Follows the alias and remembers when the first record of each switch came, seconds since the epoch."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(name="consumer", daemon=True)
        self._consumer = LiveConsumer(APP, group="bench", settings=settings)
        self.first: dict[int, float] = {}
        self.records = 0
        # the switch after which it reads the new result: the delta is applied
        self.settled = 1
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            record = self._consumer.poll(0.1)
            if record is not None:
                self.records += 1
                self.first.setdefault(record.number, time.time())
                if record.position.segment is None:
                    self.settled = record.number

    def stop(self) -> None:
        self._stopped.set()
        self.join(10)
        self._consumer.close()


def measure(context: Context, switchyard: Command, keys: int, rounds: int) -> dict[str, Any]:
    """Seconds from the start of `promote` and of `rollback`, `rounds` of each, to the consumer's first record of the
    other version; of these, `planned_s` until the operation was opened.

    `live_gap_s`: the longest time between two commits of the live release while it was switched away from, promote and
    rollback; `live_batch_s`: the median of that time before.
    """
    settings = context.settings
    ensure_topic(settings, TOPIC, 4, INPUT)
    source = Input(settings, keys)
    source.load()
    for version, name in ((1, OLD), (2, NEW)):
        execute(context, plan_stage(context, APP, version=version, code_dir=HERE / f"v{version}"))
        execute(context, plan_start(context, name))
        wait_ready(context, name, unread_records=0, for_s=1.0, timeout_s=600)
        if version == 1:
            execute(context, plan_promote(context, name))
    source.start()
    consumer = Consumer(settings)
    consumer.start()
    try:
        context.until("the consumer has not read the table", lambda: consumer.records >= keys, timeout_s=300)
        for name in (OLD, NEW):
            wait_ready(context, name, unread_records=2 * LIVE_PER_S, for_s=1.0, timeout_s=120)
        began = time.monotonic()
        found = diff(context, NEW)
        diff_s = time.monotonic() - began
        report: dict[str, Any] = {"keys": found.total, "changed": found.changed, "diff_s": round(diff_s, 2)}
        usual = _gaps_s(settings, OLD, time.time() - 30, time.time())
        report |= {name: [] for name in ("promote_s", "rollback_s", "planned_s", "delta_applied_s")}
        gaps: list[float] = []
        for number in range(2, 2 * rounds + 2):
            live, command = (OLD, ("promote", NEW)) if number % 2 == 0 else (NEW, ("rollback", APP))
            took_s, planned_s = _switch(context, switchyard, consumer, number, *command)
            report[f"{command[0]}_s"].append(took_s)
            report["planned_s"].append(planned_s)
            gaps += _gaps_s(settings, live, time.time() - took_s - 1, time.time())
            began = time.monotonic()
            context.until(
                "the consumer has not applied the delta", lambda n=number: consumer.settled == n, timeout_s=300
            )
            report["delta_applied_s"].append(round(time.monotonic() - began, 2))
        report |= {
            # None: no batch of the live release ended meanwhile
            "live_gap_s": round(max(gaps), 2) if gaps else None,
            "live_batch_s": round(statistics.median(usual), 2),
        }
    finally:
        consumer.stop()
        source.stop()
        for name in (NEW, OLD):
            execute(context, plan_stop(context, name))
    return report


def _gaps_s(settings: Settings, release: str, since_s: float, until_s: float) -> list[float]:
    """Seconds between the commits of a release's batches in a time of the epoch."""
    at = [p.at_ms / 1000 for p in progress_history(settings, release) if p.batch.rows_in]
    return [later - earlier for earlier, later in pairwise(at) if since_s <= later <= until_s]


def _switch(
    context: Context, switchyard: Command, consumer: Consumer, number: int, *command: str
) -> tuple[float, float]:
    began = time.time()
    switchyard(*command, "--execute")
    context.until("the consumer has not gone on", lambda: number in consumer.first, timeout_s=60, poll_s=0.01)
    context.registry.state()
    opened = next(e.at_ms for e in reversed([*context.registry.history()]) if isinstance(e, Opened))
    return round(consumer.first[number] - began, 2), round(opened / 1000 - began, 2)
