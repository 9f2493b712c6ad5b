"""Watches the parts that a running release needs: its topics by their ids, what its inputs still have, its checkpoint.

A topic that was deleted looks like an outage to a producer, and one that was made again looks like none: a release would go
on at offsets that mean something else. So Kafka is asked every few seconds, whether a batch runs or not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pipelines.errors import SwitchyardError
from pipelines.kafka.cluster import Cluster
from pipelines.kafka.topics import HEARTBEATS, RESULT_STREAM
from pipelines.model.missing import InputNow, Reader, cut_from, told
from pipelines.model.names import dead_letter_topic
from pipelines.model.parts import Loss, lost_topics, parts_of, vital
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import Release, TopicsKnown

log = logging.getLogger("switchyard.driver")

# a loss is named within 10 s: this, the second look, and what the answers take
EVERY_S = 5.0
# brokers learn of a topic that was just made one after the other: what is said once may be said by one that doesn't know yet
_AGAIN_S = 0.5

Stands = Callable[[], tuple[SourcePosition, bool]]


class PartLost(SwitchyardError):
    """A part is lost without which the release can't go on. `registry`: whether it is the registry itself."""

    def __init__(self, what: str, fix: str, *, registry: bool = False) -> None:
        super().__init__(what, fix)
        self.registry = registry


class Watch:
    """Looks every few seconds, on a thread of its own; what it has found stays in `trouble`.

    `stands`: where the release stands, and whether a batch is under way. `registry_id`: of the registry as read. `alarm` is told of a trouble once, at once. `made`
    is told of topics that were made again.
    """

    def __init__(
        self,
        cluster: Cluster,
        release: Release,
        *,
        stands: Stands,
        registry_id: str | None = None,
        checkpoint: Callable[[], Path | None] = lambda: None,
        alarm: Callable[[PartLost], None] = lambda _: None,
        made: Callable[[TopicsKnown], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._release = release
        self._stands = stands
        self._registry_id = registry_id
        self._checkpoint = checkpoint
        self._alarm = alarm
        self._made = made
        self._parts = parts_of(release)
        self._every_s = min(EVERY_S, 5 * cluster.settings.heartbeat_s)
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
        """Looks now. What is lost is looked at twice. Raises Unavailable where Kafka doesn't answer."""
        with self._looking:
            if self.trouble is None:
                found = self._find()
                if found is not None and not self._stopped.wait(_AGAIN_S):
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
                    log.warning("%s: whether its parts are there isn't known: %s", self._release.name, error)
                self._failing = True
            else:
                self._failing = False

    def _find(self) -> PartLost | None:
        ids = self._cluster.topic_ids(self._parts)
        losses = lost_topics(self._release, self._parts, ids, registry_id=self._registry_id)
        path = self._checkpoint()
        if path is not None and not (path / "offsets").is_dir():
            losses.append(Loss(release=self._release.name, part="checkpoint", name=str(path)))
        if fatal := vital(losses):
            ways = list(dict.fromkeys(loss.way for loss in fatal))
            registry = any(loss.part == "registry" for loss in fatal)
            return PartLost("; ".join(loss.what for loss in fatal), fix="; ".join(ways), registry=registry)
        self._make_again(losses)
        return self._cut()

    def _make_again(self, losses: list[Loss]) -> None:
        for loss in losses:
            if loss.how == "another":
                # what it held is gone, and it serves as well
                log.warning("%s: %s; it goes on in that", self._release.name, loss.what)
            else:
                config = HEARTBEATS if loss.part == "heartbeats" else RESULT_STREAM
                self._cluster.ensure_topic(loss.name, 1, config)
                log.warning("%s: %s; it was made again, empty", self._release.name, loss.what)
        own = [loss.name for loss in losses if loss.name == dead_letter_topic(self._release.name)]
        if own:
            made = self._cluster.topic_ids(own)
            known = TopicsKnown(release=self._release.name, generation=self._release.generation, own=made)
            self._release = _with_own(self._release, made)
            self._made(known)

    def _cut(self) -> PartLost | None:
        """That retention has deleted what comes next. A batch under way may have read it."""
        before, busy = self._stands()
        topics = self._release.spec.topics
        counts = {i.topic: i.partitions for i in self._release.spec.inputs.values()}
        found = self._cluster.first_of(counts)
        first = {topic: InputNow(first=offsets) for topic, offsets in found.items()}
        after, still = self._stands()
        if busy or still or after != before:
            return None
        ours = Reader(begins=after.by_topic(topics), reached={}, since_ms=0, ids={})
        gaps = cut_from(ours, first)
        if not gaps:
            return None
        name = self._release.name
        return PartLost(
            f"{name} can't have all the input that it was to read: {told(gaps)}",
            fix=f"restore the input from an archive; or accept that its result lacks it: `switchyard start {name} --missing-history accept --execute`, "
            f"or where consumers have followed it `switchyard reset {name} --to-earliest --missing-history accept --execute`",
        )


def unknown_ids(release: Release, now: Mapping[str, str]) -> TopicsKnown | None:
    """What is not known yet of a release's topics, as a registry of an older version doesn't; None: all is known."""
    parts, inputs = parts_of(release), release.input_ids.get(release.generation, {})
    more = {t: i for t, i in now.items() if parts.get(t) == "input" and t not in inputs}
    shared = ("input", "registry", "heartbeats")
    own = {t: i for t, i in now.items() if t in parts and parts[t] not in shared and t not in release.own_ids}
    if not more and not own:
        return None
    return TopicsKnown(release=release.name, generation=release.generation, inputs=more, own=own)


def _with_own(release: Release, made: Mapping[str, str]) -> Release:
    return replace(release, own_ids={**release.own_ids, **made})
