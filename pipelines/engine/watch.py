"""Watches whether Kafka still has the input that a running release is to read next.

Retention passes whether a batch runs or not, and a release that waits for another has none. So Kafka is asked every few
seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pipelines.errors import SwitchyardError
from pipelines.kafka.client import admin
from pipelines.kafka.offsets import first_of
from pipelines.model.missing import InputNow, Reader, cut_from, told
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import Release
from pipelines.settings import Settings

log = logging.getLogger("switchyard.driver")

# a loss is named within 10 s: this, and what the answers take
EVERY_S = 5.0

Stands = Callable[[], tuple[SourcePosition, bool]]


class PartLost(SwitchyardError):
    """Something is lost without which the release can't go on."""


class Watch:
    """Looks every few seconds, on a thread of its own; what it has found stays in `trouble`.

    `stands`: where the release stands, and whether a batch is under way. `alarm` is told of a trouble once, at once.
    """

    def __init__(
        self,
        settings: Settings,
        release: Release,
        *,
        stands: Stands,
        alarm: Callable[[PartLost], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._release = release
        self._stands = stands
        self._alarm = alarm
        self._admin = admin(settings)
        self._every_s = min(EVERY_S, 5 * settings.heartbeat_s)
        self._looking = threading.Lock()
        self._failing = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.trouble: PartLost | None = None

    def start(self) -> None:
        """Begins to look."""
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()

    def look(self) -> PartLost | None:
        """Looks now. Raises Unavailable where Kafka doesn't answer."""
        with self._looking:
            if self.trouble is None:
                found = self._find()
                if found is not None and not self._stopped.is_set():
                    self.trouble = found
                    self._alarm(found)
            return self.trouble

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                if self.look() is not None:
                    return
            except Exception as error:
                # an outage is told by whoever writes; here it only means that nothing is known
                if not self._failing:
                    log.warning("%s: whether its input is there isn't known: %s", self._release.name, error)
                self._failing = True
            else:
                self._failing = False

    def _find(self) -> PartLost | None:
        return self._cut()

    def _cut(self) -> PartLost | None:
        """That retention has deleted what comes next. A batch under way may have read it."""
        before, busy = self._stands()
        topics = self._release.spec.topics
        counts = {i.topic: i.partitions for i in self._release.spec.inputs.values()}
        first = {t: InputNow(first=first_of(self._settings, t, counts[t], client=self._admin)) for t in counts}
        after, still = self._stands()
        if busy or still or after != before:
            return None
        gaps = cut_from(Reader(begins=after.by_topic(topics), reached={}, since_ms=0, ids={}), first)
        if not gaps:
            return None
        name = self._release.name
        return PartLost(
            f"{name} can't have all the input that it was to read: {told(gaps)}",
            fix=f"restore the input from an archive; or accept that its result lacks it: `switchyard start {name} --missing-history accept --execute`, "
            f"or where consumers have followed it `switchyard reset {name} --to-earliest --missing-history accept --execute`",
        )
