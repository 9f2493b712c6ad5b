"""Watches the parts that a running release needs: its topics by their ids, what its inputs still have, its checkpoint.

To a producer, a deleted topic looks like an outage. A topic recreated under the same name looks normal, and a release would
read on at offsets that mean nothing there. So Kafka is asked every few seconds, whether a batch runs or not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pipelines.engine.checkpoint import is_taken_over, is_whole
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.cluster import Cluster
from pipelines.kafka.topics import HEARTBEATS, RESULT_STREAM
from pipelines.model.entries import TopicsKnown
from pipelines.model.missing import InputNow, Reader, cut_from, told
from pipelines.model.names import dead_letter_topic
from pipelines.model.parts import Loss, lost_checkpoint, lost_topics, parts_of, vital
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import Release

log = logging.getLogger("switchyard.driver")

# a loss is reported within 10 s: this interval, the second look, and the time of the answers
EVERY_S = 5.0
# brokers learn of a new topic one after the other, so one broker may not know it yet
_AGAIN_S = 0.5

Position = Callable[[], tuple[SourcePosition, bool]]


class PartLost(SwitchyardError):
    """A part is lost that the release can't run without. `registry`: whether it is the registry itself."""

    def __init__(self, what: str, fix: str, *, registry: bool = False) -> None:
        super().__init__(what, fix)
        self.registry = registry


class Watch:
    """Looks every few seconds, on a thread of its own. A loss that it found stays in `trouble`.

    `position`: where the release is, and whether a batch is under way. `registry_id`: the id of the registry's topic when it
    was read. `alarm` is called at once, once. `made` is called with topics that were recreated.
    """

    def __init__(
        self,
        cluster: Cluster,
        release: Release,
        *,
        position: Position,
        registry_id: str | None = None,
        checkpoint: Callable[[], Path | None] = lambda: None,
        alarm: Callable[[PartLost], None] = lambda _: None,
        made: Callable[[TopicsKnown], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._release = release
        self._position = position
        self._registry_id = registry_id
        self._checkpoint = checkpoint
        self._alarm = alarm
        self._made = made
        self._parts = parts_of(release)
        self._every_s = min(EVERY_S, 5 * cluster.settings.heartbeat_s)
        self._looking = threading.Lock()
        self._failing = False
        # topic that it may not create -> what it has said about that
        self._told: dict[str, str] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.trouble: PartLost | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it, and waits for a look under way: from then on it creates nothing."""
        self._stopped.set()
        with self._looking:
            pass

    def look(self) -> PartLost | None:
        """Looks now, and a second time if a part seems lost; not once it is closed. Raises Unavailable if Kafka doesn't
        answer.
        """
        with self._looking:
            if self.trouble is None and not self._stopped.is_set():
                found = self._find()
                if found is not None and not self._stopped.wait(_AGAIN_S):
                    found = self._find()
                if found is not None and not self._stopped.is_set():
                    self.trouble = found
                    self._alarm(found)
            return self.trouble

    @property
    def missing(self) -> list[str]:
        """The lost topics that it may not create again, each with what helps."""
        return [*self._told.values()]

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                if self.look() is not None:
                    return
            except Exception as error:
                # the sink reports an outage; here it only means that nothing is known
                if not self._failing:
                    log.warning("%s: could not check whether its parts are there: %s", self._release.name, error)
                self._failing = True
            else:
                self._failing = False

    def _find(self) -> PartLost | None:
        ids = self._cluster.topic_ids(self._parts)
        losses = lost_topics(self._release, self._parts, ids, registry_id=self._registry_id)
        path = self._checkpoint()
        # a driver that was cut off for a while may not know yet that it is superseded
        if path is not None and not is_whole(path) and not is_taken_over(path):
            losses.append(lost_checkpoint(self._release.name, path.parent))
        if fatal := vital(losses):
            ways = list(dict.fromkeys(loss.way for loss in fatal))
            registry = any(loss.part == "registry" for loss in fatal)
            return PartLost("; ".join(loss.what for loss in fatal), fix="; ".join(ways), registry=registry)
        self._make_again(losses)
        return self._cut()

    def _make_again(self, losses: list[Loss]) -> None:
        there = set[str]()
        # someone else may have created them since
        self._told = {
            loss.name: self._told[loss.name] for loss in losses if loss.how == "gone" and loss.name in self._told
        }
        for loss in losses:
            if loss.how == "another":
                # its records are gone, but the release can use it
                log.warning("%s: %s; the release uses the new one", self._release.name, loss.what)
                there.add(loss.name)
            elif self._create(loss):
                there.add(loss.name)
        letters = dead_letter_topic(self._release.name)
        if letters in there:
            made = self._cluster.topic_ids([letters])
            known = TopicsKnown(release=self._release.name, generation=self._release.generation, own=made)
            self._release = _with_own(self._release, made)
            self._made(known)

    def _create(self, loss: Loss) -> bool:
        """Whether the lost topic could be created. A driver whose login may not create topics runs on without it."""
        try:
            self._cluster.ensure_topic(loss.name, 1, HEARTBEATS if loss.part == "heartbeats" else RESULT_STREAM)
        except Refused as error:
            if loss.name not in self._told:
                log.warning(
                    "%s: %s, and this login can't create it again: %s", self._release.name, loss.what, error.what
                )
            self._told = {**self._told, loss.name: loss.told}
            return False
        log.warning("%s: %s; it was created again, empty", self._release.name, loss.what)
        return True

    def _cut(self) -> PartLost | None:
        """The loss, if retention has deleted an input's next records. None if a batch may have read them already."""
        before, busy = self._position()
        topics = self._release.spec.topics
        counts = {i.topic: i.partitions for i in self._release.spec.inputs.values()}
        found = self._cluster.first_of(counts)
        first = {topic: InputNow(first=offsets) for topic, offsets in found.items()}
        after, still = self._position()
        if busy or still or after != before:
            return None
        ours = Reader(begins=after.by_topic(topics), reached={}, since_ms=0, ids={})
        gaps = cut_from(ours, first)
        if not gaps:
            return None
        name = self._release.name
        return PartLost(
            f"{name} can't read all of its input: {told(gaps)}",
            fix=f"restore the input from a backup; or accept a result without it: `switchyard start {name} --missing-history accept --execute`, "
            f"or if consumers have followed the result `switchyard reset {name} --to-earliest --missing-history accept --execute`",
        )


def unknown_ids(release: Release, now: Mapping[str, str]) -> TopicsKnown | None:
    """The topic ids of a release that the registry lacks, as one written by an older version does; None: it has all."""
    parts, inputs = parts_of(release), release.input_ids.get(release.generation, {})
    more = {t: i for t, i in now.items() if parts.get(t) == "input" and t not in inputs}
    shared = ("input", "registry", "heartbeats")
    own = {t: i for t, i in now.items() if t in parts and parts[t] not in shared and t not in release.own_ids}
    if not more and not own:
        return None
    return TopicsKnown(release=release.name, generation=release.generation, inputs=more, own=own)


def _with_own(release: Release, made: Mapping[str, str]) -> Release:
    return replace(release, own_ids={**release.own_ids, **made})
