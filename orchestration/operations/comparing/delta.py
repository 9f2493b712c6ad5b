"""Makes the delta of a switch from what two tables have written since their diff."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from orchestration.operations.comparing import upkeep
from orchestration.operations.comparing.changes import Changes
from orchestration.operations.comparing.delta_topic import DeltaTopic
from orchestration.operations.comparing.evidence import evidence_path
from orchestration.operations.comparing.fold_file import count_keys
from orchestration.operations.comparing.since import InAdvance, changed_ratio
from orchestration.operations.comparing.touch_up import TouchUp, since_diff, touch_up
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.client import admin, consumer
from pipelines.kafka.offsets import end_of
from pipelines.kafka.topics import partition_count
from pipelines.model.entries import DeltaSegment, EvidenceRecorded
from pipelines.model.parts import Loss
from pipelines.model.positions import ResultPosition
from pipelines.model.switch import holds_ahead
from pipelines.objects import fetch_folder
from pipelines.settings import Settings


class Delta:
    """The delta of one switch to the release `to`: a `Since` that also writes. Raises SwitchyardError if the evidence
    has no delta, Refused if its delta topic is lost, and as `fetch_folder` does.

    `begin` reads what both results have so far, and writes the new result's part of it as a segment of its own.
    """

    counts, came = "keys", "were touched"

    def __init__(self, settings: Settings, evidence: EvidenceRecorded, *, to: str) -> None:
        self._reverse = evidence.live == to
        base = evidence.backward if self._reverse else evidence.forward
        if base is None:
            raise SwitchyardError(
                f"evidence {evidence.id} has no delta", fix=f"run `switchyard diff {evidence.new}` again"
            )
        self._base = base
        self._recorded = evidence
        self._settings = settings
        self._fold = evidence_path(settings, evidence.id)
        # now, as consumers would wait for it later
        fetch_folder(settings, self._fold)
        self._admin = admin(settings)
        self._consumer = consumer(
            settings, auto_offset_reset="earliest", enable_partition_eof=True, fetch_wait_max_ms=20
        )
        since = evidence.live_result, evidence.new_result
        self._evidence = tuple(reversed(since)) if self._reverse else since
        self._refuse_lost(to)
        # when this producer connects, it fences an earlier operator's producer of this topic
        self._topic = DeltaTopic(settings, base.topic)
        self._in_advance = InAdvance("delta", "the delta could not be prepared in advance")
        self._forget()

    def _refuse_lost(self, to: str) -> None:
        """Raises Refused if the evidence's delta is lost, because consumers would wait for it forever."""
        there = partition_count(self._settings, self._base.topic, client=self._admin) is not None
        ends = end_of(self._settings, self._base.topic, 1, committed=False, client=self._admin) if there else {0: 0}
        if ends[0] < self._base.end:
            how: Literal["gone", "another"] = "another" if there else "gone"
            lost = Loss(release=to, part="delta", name=self._base.topic, how=how)
            raise Refused(lost.what, fix=lost.way)

    def _forget(self) -> None:
        self._old, self._new = map(Changes, self._evidence)
        self._recalled = False
        # the segment that was written in advance, and its content
        self._ahead: tuple[DeltaSegment, Mapping[str, str | None]] | None = None
        # what is known about both results in advance, and the keys that only one touched by then, or that were touched
        # since
        self._known = TouchUp(old={}, new={})
        self._open: set[str] = set()

    def begin(self) -> None:
        """Starts a thread that does as much as possible in advance."""
        self._in_advance.begin(self._prepare, self._start_over)

    def advance(self, raise_if_closed: Callable[[], None], few: int) -> None:
        """Does as much as possible in advance. Calls `raise_if_closed` now and then, which raises to end it.

        1. Reads until no more than `few` records arrive while it reads. 2. Compares. 3. Writes. Raises the error of a
        step that fails, because there would be no time to repeat the step while consumers wait.
        """
        self._recall()
        came = True
        while came:
            ends = (self._old, self._now(self._old)), (self._new, self._now(self._new))
            many = sum(end.records_since(result.position) for result, end in ends) > few
            keys = [r.read(self._consumer, end, self._settings.request_timeout_s, raise_if_closed) for r, end in ends]
            # transaction markers count as offsets, but are never read
            came = many and any(keys)
        self._open = self._old.changes.keys() ^ self._new.changes.keys()
        self._known = self._touch_up()
        self._open = set()
        if len(self._known):
            self._ahead = self._topic.append(self._known.new.items()), self._known.new

    def prepared(self) -> None:
        """Waits until the work in advance is done."""
        self._in_advance.wait()

    def close(self) -> None:
        """Ends the reading and writing."""
        self._in_advance.close()
        self._consumer.close()

    def read_to(self, old_end: ResultPosition, new_end: ResultPosition) -> TouchUp:
        """The keys that either result touched between the evidence cut and its end, with their values."""
        self.prepared()
        self._recall()
        if not self._is_ahead_of(old_end, new_end):
            # a resumed operation may have read past the cut; start again
            self._forget()
            self._recall()
            if not self._is_ahead_of(old_end, new_end):
                raise SwitchyardError(
                    f"the last refresh of {self._recorded.id} has read past the cut of this switch",
                    fix=f"delete {upkeep.path_of(self._settings, self._recorded)}, then try again",
                )
        self._open |= self._read(self._old, old_end) | self._read(self._new, new_end)
        return self._touch_up()

    def _is_ahead_of(self, old_end: ResultPosition, new_end: ResultPosition) -> bool:
        return holds_ahead(self._old.position, old_end) and holds_ahead(self._new.position, new_end)

    def _recall(self) -> None:
        """Loads what the last refresh saved, unless that is done already."""
        if self._recalled:
            return
        kept, live, new = upkeep.load(self._settings, self._recorded)
        found = Changes(kept.live_result, live), Changes(kept.new_result, new)
        self._old, self._new = reversed(found) if self._reverse else found
        # these are in no segment yet, and the ones that only one result touched were not looked up
        self._open |= live.keys() | new.keys()
        self._recalled = True

    def changed_ratio(self, found: TouchUp) -> float:
        """Share of all keys in which the results differ at the switch cut. A few touched keys alone would say little."""
        more, differing = since_diff(
            self._recorded, found, count_keys(self._fold, found.new.keys(), self._recorded.new)
        )
        return changed_ratio(self._recorded, more=more, differing=differing)

    def write(self, touched: TouchUp) -> tuple[DeltaSegment, ...]:
        """Writes the touched keys. Returns the delta's segments: consumers take a key from the first segment that has
        it.
        """
        segment, ahead = self._ahead or (None, {})
        changes = touched.changes(self._open, ahead)
        last = self._topic.append(changes.items()) if changes else None
        return tuple(s for s in (last, segment, self._base) if s is not None and s.end > s.start)

    def _touch_up(self) -> TouchUp:
        """What both results hold for all keys that were read; looks up the open keys that only one result touched."""
        old, new = {**self._known.old, **self._old.changes}, {**self._known.new, **self._new.changes}
        one_sided = {key for key in self._open if (key in old) != (key in new)}
        return touch_up(old, new, one_sided, self._fold, of=self._recorded.new, reverse=self._reverse)

    def _prepare(self) -> None:
        self._recall()
        # both ends now: later records may be past the cut
        old_now, new_now = self._now(self._old), self._now(self._new)
        self._in_advance.raise_if_closed()
        with ThreadPoolExecutor(1, "delta-topic") as pool:
            connected = pool.submit(self._topic.connect)
            self._read(self._new, new_now)
            connected.result()
        self._in_advance.raise_if_closed()
        if self._new.changes:
            self._ahead = self._topic.append(self._new.changes.items()), dict(self._new.changes)
        self._read(self._old, old_now)
        # the other result is about to touch most of these, so they are not looked up in the fold yet
        self._open = self._old.changes.keys() ^ self._new.changes.keys()

    def _start_over(self) -> None:
        self._forget()
        # aborts the unfinished transaction when it connects
        self._topic = DeltaTopic(self._settings, self._base.topic)

    def _read(self, result: Changes, end: ResultPosition) -> set[str]:
        return result.read(self._consumer, end, self._settings.request_timeout_s, self._in_advance.raise_if_closed)

    def _now(self, result: Changes) -> ResultPosition:
        return result.now(self._settings, self._admin)
