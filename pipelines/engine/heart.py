"""The driver's heartbeat. It has its own thread, so that a driver in a long batch or at boot doesn't look dead."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from pipelines.kafka.client import producer
from pipelines.model.names import HEARTBEATS_TOPIC
from pipelines.model.progress import Heartbeat
from pipelines.settings import Settings

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
# with heartbeat_s added, a heartbeat comes at least every 3 s: a fifth of lease_timeout_s
PROBE_TIMEOUT_S = 2.0


class Probe(Generic[Answer]):
    """Asks a question for a heartbeat, and delays the heartbeat by at most `timeout_s`.

    The answer is None if `ask` raises or takes longer: an unknown value must not keep the driver from showing that it
    runs. `ask` runs on a thread of its own, one call at a time. Trouble is logged once, until it is over.
    """

    def __init__(self, what: str, ask: Callable[[], Answer | None], timeout_s: float = PROBE_TIMEOUT_S) -> None:
        self._what = what
        self._ask = ask
        self._timeout_s = timeout_s
        self._under_way = threading.Lock()
        self._failing = False

    def __call__(self) -> Answer | None:
        deadline = time.monotonic() + self._timeout_s
        if not self._under_way.acquire(timeout=self._timeout_s):
            return None
        answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(answers,), name="probe", daemon=True).start()
        try:
            return answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            self._trouble(f"no answer within {self._timeout_s:g} s")
            return None

    def _run(self, answers: queue.SimpleQueue[Answer | None]) -> None:
        began, found = time.monotonic(), None
        try:
            found = self._ask()
        except Exception as error:
            self._trouble(f"{type(error).__name__}: {error}")
        else:
            if self._failing and time.monotonic() - began < self._timeout_s:
                self._failing = False
                log.info("%s is known again", self._what)
        finally:
            answers.put(found)
            self._under_way.release()

    def _trouble(self, why: str) -> None:
        if not self._failing:
            log.warning("%s is unknown: %s", self._what, why)
        self._failing = True


class Heart:
    """Sends `snapshot()` every `heartbeat_s`. If sending fails, it logs that once and keeps trying."""

    def __init__(self, settings: Settings, snapshot: Callable[[], Heartbeat]) -> None:
        self._interval_s = settings.heartbeat_s
        self._snapshot = snapshot
        self._producer = producer(settings, linger_ms=0)
        self._failing = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
        self._thread.start()

    def beat(self) -> None:
        """Sends a heartbeat now."""
        try:
            beat = self._snapshot()
            self._producer.produce(HEARTBEATS_TOPIC, beat.model_dump_json(exclude_none=True), beat.release, partition=0)
            self._producer.poll(0)
        except Exception as error:
            if not self._failing:
                log.warning("can't send heartbeats: %s: %s", type(error).__name__, error)
            self._failing = True
        else:
            if self._failing:
                log.info("heartbeats are sent again")
            self._failing = False

    def close(self) -> None:
        """Sends a last heartbeat, then stops."""
        self._stopped.set()
        self._thread.join(timeout=5)
        self.beat()
        self._producer.flush(2)

    def _run(self) -> None:
        self.beat()
        while not self._stopped.wait(self._interval_s):
            self.beat()
