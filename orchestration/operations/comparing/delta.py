"""What two tables have written since they were compared, made into the delta of a switch."""

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
from pipelines.model.parts import Loss
from pipelines.model.positions import ResultPosition
from pipelines.model.registry import DeltaSegment, EvidenceRecorded
from pipelines.model.switch import holds_ahead
from pipelines.settings import Settings


class Delta:
    """The delta of one switch, to the release `to`: a `Since` that is written, too. Raises SwitchyardError if the evidence
    has none.

    `begin` reads what the results have so far, and writes what the new one has of it as a segment of its own.
    """

    counts, came = "keys", "were touched"

    def __init__(self, settings: Settings, evidence: EvidenceRecorded, *, to: str) -> None:
        self._reverse = evidence.live == to
        base = evidence.backward if self._reverse else evidence.forward
        if base is None:
            raise SwitchyardError(f"evidence {evidence.id} has no delta", fix="run `switchyard diff` again")
        self._base = base
        self._recorded = evidence
        self._settings = settings
        self._fold = evidence_path(settings, evidence.id)
        self._admin = admin(settings)
        self._consumer = consumer(
            settings, auto_offset_reset="earliest", enable_partition_eof=True, fetch_wait_max_ms=20
        )
        since = evidence.live_result, evidence.new_result
        self._evidence = tuple(reversed(since)) if self._reverse else since
        self._refuse_lost(to)
        # an earlier operator's producer of this topic is fenced by the first one that connects
        self._topic = DeltaTopic(settings, base.topic)
        self._in_advance = InAdvance("delta", "the delta could not be begun in advance")
        self._forget()

    def _refuse_lost(self, to: str) -> None:
        """Raises Refused where consumers would wait in vain for what the evidence's delta had."""
        there = partition_count(self._settings, self._base.topic, client=self._admin) is not None
        ends = end_of(self._settings, self._base.topic, 1, committed=False, client=self._admin) if there else {0: 0}
        if ends[0] < self._base.end:
            how: Literal["gone", "another"] = "another" if there else "gone"
            lost = Loss(release=to, part="delta", name=self._base.topic, how=how)
            raise Refused(lost.what, fix=lost.way)

    def _forget(self) -> None:
        self._old, self._new = map(Changes, self._evidence)
        self._recalled = False
        # the segment that was written in advance, and what it tells
        self._ahead: tuple[DeltaSegment, Mapping[str, str | None]] | None = None
        # what is known of both results in advance, and the keys that were touched by one alone then, or are since
        self._known = TouchUp(old={}, new={})
        self._open: set[str] = set()

    def begin(self) -> None:
        """Has a thread do in advance what can be."""
        self._in_advance.begin(self._prepare, self._begin_anew)

    def advance(self, go_on: Callable[[], None], few: int) -> None:
        """Does in advance all that can be. `go_on` is called now and then, and raises where it is to end.

        1. reads, until no more than `few` records came meanwhile; 2. compares; 3. writes. What fails is raised: where
        consumers wait there would be no time for it.
        """
        self._recall()
        came = True
        while came:
            ends = (self._old, self._now(self._old)), (self._new, self._now(self._new))
            many = sum(end.records_since(result.position) for result, end in ends) > few
            keys = [r.read(self._consumer, end, self._settings.request_timeout_s, go_on) for r, end in ends]
            # the ends of transactions count as records, and are never read
            came = many and any(keys)
        self._open = self._old.changes.keys() ^ self._new.changes.keys()
        self._known = self._touch_up()
        self._open = set()
        if len(self._known):
            self._ahead = self._topic.append(self._known.new.items()), self._known.new

    def prepared(self) -> None:
        """Waits until what could be done in advance is done."""
        self._in_advance.wait()

    def close(self) -> None:
        """Nothing is read or written after this."""
        self._in_advance.close()
        self._consumer.close()

    def read_to(self, old_end: ResultPosition, new_end: ResultPosition) -> TouchUp:
        """What the keys are that either result touched between the evidence cut and its end."""
        self.prepared()
        self._recall()
        if not self._is_ahead_of(old_end, new_end):
            # an operation that was left and is resumed: the results have gone on behind the cut
            self._forget()
            self._recall()
            if not self._is_ahead_of(old_end, new_end):
                raise SwitchyardError(
                    f"what was kept since {self._recorded.id} lies behind the cut",
                    fix=f"delete {upkeep.path_of(self._settings, self._recorded)}, then try again",
                )
        self._open |= self._read(self._old, old_end) | self._read(self._new, new_end)
        return self._touch_up()

    def _is_ahead_of(self, old_end: ResultPosition, new_end: ResultPosition) -> bool:
        return holds_ahead(self._old.position, old_end) and holds_ahead(self._new.position, new_end)

    def _recall(self) -> None:
        """Begins with what was kept since the evidence, if that was not done yet."""
        if self._recalled:
            return
        kept, live, new = upkeep.load(self._settings, self._recorded)
        found = Changes(kept.live_result, live), Changes(kept.new_result, new)
        self._old, self._new = reversed(found) if self._reverse else found
        # nobody was told of these, and those that one alone touched were not looked up
        self._open |= live.keys() | new.keys()
        self._recalled = True

    def changed_ratio(self, found: TouchUp) -> float:
        """Share of all keys in which the results differ at the switch cut: a few keys that were touched are no measure."""
        more, differing = since_diff(self._recorded, found, count_keys(self._fold, found.new.keys()))
        return changed_ratio(self._recorded, more=more, differing=differing)

    def write(self, touched: TouchUp) -> tuple[DeltaSegment, ...]:
        """Writes the touched keys. Returns the delta's segments: a key is taken from the first one that has it."""
        segment, ahead = self._ahead or (None, {})
        changes = touched.changes(self._open, ahead)
        last = self._topic.append(changes.items()) if changes else None
        return tuple(s for s in (last, segment, self._base) if s is not None and s.end > s.start)

    def _touch_up(self) -> TouchUp:
        """What both results have of all keys that were read, where those that one alone touched are among the open ones."""
        old, new = {**self._known.old, **self._old.changes}, {**self._known.new, **self._new.changes}
        one_sided = {key for key in self._open if (key in old) != (key in new)}
        return touch_up(old, new, one_sided, self._fold, reverse=self._reverse)

    def _prepare(self) -> None:
        self._recall()
        # at once: what comes later may lie behind the cut
        old_now, new_now = self._now(self._old), self._now(self._new)
        self._in_advance.go_on()
        with ThreadPoolExecutor(1, "delta-topic") as pool:
            connected = pool.submit(self._topic.connect)
            self._read(self._new, new_now)
            connected.result()
        self._in_advance.go_on()
        if self._new.changes:
            self._ahead = self._topic.append(self._new.changes.items()), dict(self._new.changes)
        self._read(self._old, old_now)
        # most of these the other side is about to touch: not worth a look into the fold
        self._open = self._old.changes.keys() ^ self._new.changes.keys()

    def _begin_anew(self) -> None:
        self._forget()
        # aborts what was begun, once it connects
        self._topic = DeltaTopic(self._settings, self._base.topic)

    def _read(self, result: Changes, end: ResultPosition) -> set[str]:
        return result.read(self._consumer, end, self._settings.request_timeout_s, self._in_advance.go_on)

    def _now(self, result: Changes) -> ResultPosition:
        return result.now(self._settings, self._admin)
