"""The driver's heartbeat: a thread of its own, so that a long batch or a boot doesn't look like a death."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from pipelines.kafka.client import producer
from pipelines.model.names import HEARTBEATS_TOPIC
from pipelines.model.progress import Heartbeat
from pipelines.settings import Settings

log = logging.getLogger(__name__)


class Heart:
    """Sends `snapshot()` each `heartbeat_s`. Trouble is logged once, until it is over; the next one is tried."""

    def __init__(self, settings: Settings, snapshot: Callable[[], Heartbeat]) -> None:
        self._interval_s = settings.heartbeat_s
        self._snapshot = snapshot
        self._producer = producer(settings, linger_ms=0)
        self._failing = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
        self._thread.start()

    def beat(self) -> None:
        """Sends one now."""
        try:
            beat = self._snapshot()
            self._producer.produce(HEARTBEATS_TOPIC, beat.model_dump_json(exclude_none=True), beat.release, partition=0)
            self._producer.poll(0)
        except Exception as error:
            if not self._failing:
                log.warning("no heartbeat can be sent: %s: %s", type(error).__name__, error)
            self._failing = True
        else:
            if self._failing:
                log.info("heartbeats are sent again")
            self._failing = False

    def close(self) -> None:
        """Stops, after a last one."""
        self._stopped.set()
        self._thread.join(timeout=5)
        self.beat()
        self._producer.flush(2)

    def _run(self) -> None:
        self.beat()
        while not self._stopped.wait(self._interval_s):
            self.beat()


def rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
