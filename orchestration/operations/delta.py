"""The delta of a switch: what takes a consumer of a table from the one result to the other, as a topic."""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from operator import ne
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from orchestration.operations import upkeep
from orchestration.operations.evidence import Comparison, evidence_path
from orchestration.operations.reading import read_changes
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.client import admin, await_connection, consumer, producer
from pipelines.kafka.offsets import end_of
from pipelines.kafka.topics import APPEND_ONLY, ensure_topic, partition_count
from pipelines.model.names import delta_topic
from pipelines.model.parts import Loss
from pipelines.model.positions import ResultPosition
from pipelines.model.registry import DeltaSegment, EvidenceRecorded
from pipelines.model.switch import holds_ahead, touch_ups
from pipelines.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class DeltaTopic:
    """The topic of an evidence's deltas: one partition, one transaction for each segment. `connect` takes 65-500 ms."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._admin = admin(settings)
        self._producer: Producer | None = None

    def connect(self) -> Producer:
        """The producer; an earlier one of this topic, of an operator that is gone, is fenced."""
        if self._producer is None:
            client = producer(self._settings, transactional_id=self._topic, transaction_timeout_ms=300_000)
            await_connection(client, self._topic)
            client.init_transactions(self._settings.request_timeout_s)
            self._producer = client
        return self._producer

    def append(self, changes: Iterable[tuple[str, str | None]]) -> DeltaSegment:
        """Appends (key, value or None for a tombstone) records in one transaction; returns their range."""
        client = self.connect()
        start = end_of(self._settings, self._topic, 1, committed=False, client=self._admin)[0]
        client.begin_transaction()
        for key, value in changes:
            while True:
                try:
                    client.produce(self._topic, value, key, partition=0)
                    break
                except BufferError:
                    client.poll(0.1)
        if client.flush(self._settings.request_timeout_s * 6):
            raise SwitchyardError(
                f"delta topic {self._topic} could not be written in time", fix="see the broker's log, then try again"
            )
        end = end_of(self._settings, self._topic, 1, committed=False, client=self._admin)[0]
        client.commit_transaction(self._settings.request_timeout_s)
        return DeltaSegment(topic=self._topic, start=start, end=end)


def write_delta(settings: Settings, app: str, evidence: str, path: Path) -> tuple[DeltaSegment, DeltaSegment]:
    """The delta topic of an evidence: what takes a table from live to new (forward) and back (backward)."""
    topic = delta_topic(app, evidence)
    ensure_topic(settings, topic, 1, APPEND_ONLY)
    writer = DeltaTopic(settings, topic)
    forward = writer.append(((k, new) for k, live, new in _differing(path)))
    backward = writer.append(((k, live) for k, live, new in _differing(path)))
    return forward, backward


def _differing(fold: Path) -> Iterator[tuple[str, str | None, str | None]]:
    """Key, live value and new value where they differ."""
    for batch in _batches(fold):
        for key, live, new in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if live != new:
                yield key, live, new


def _batches(fold: Path) -> Iterator[pa.RecordBatch]:
    # not pyarrow.dataset: that loads pandas, which takes a second
    import pyarrow.parquet as pq

    for path in sorted(fold.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(columns=["key", "live_value", "new_value"])


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchUp:
    """Keys that either result touched since the evidence cut, with their values in the old and in the new one at the switch
    cut. Both have the same keys; None: the result doesn't have it.
    """

    old: Mapping[str, str | None]
    new: Mapping[str, str | None]

    def __len__(self) -> int:
        return len(self.new)

    @property
    def differing(self) -> int:
        """In how many of them the results differ."""
        return sum(map(ne, map(self.old.__getitem__, self.new), self.new.values()))

    @property
    def ratio(self) -> float:
        """Share of the touched keys in which the results differ; of all keys: `changed_ratio`."""
        return self.differing / len(self) if len(self) else 0.0

    def changes(self, keys: Set[str], ahead: Mapping[str, str | None]) -> dict[str, str | None]:
        """What a consumer is told of `keys`: each one's new value; None where the new result doesn't have it. Of what a
        segment told `ahead`, only what is otherwise now.
        """
        return touch_ups(keys, {key: self.new[key] for key in keys}, ahead)


def touch_up(
    old: Mapping[str, str | None],
    new: Mapping[str, str | None],
    one_sided: Set[str],
    fold: Path,
    *,
    reverse: bool,
) -> TouchUp:
    """Brings an evidence up to date by the keys that `old` and `new` touched since (key -> last value).

    A key that only one side touched (`one_sided`) still has, on the other, the value of the evidence cut: it is looked up
    in the fold. `reverse`: the evidence's new release is the old one of this switch.
    """
    if not one_sided:
        return TouchUp(old=old, new=new)
    before_old: dict[str, str | None] = {}
    before_new: dict[str, str | None] = {}
    at_cut = _lookup(fold, one_sided)
    for key in one_sided:
        live, candidate = at_cut.get(key, (None, None))
        before_old[key], before_new[key] = (candidate, live) if reverse else (live, candidate)
    return TouchUp(old={**before_old, **old}, new={**before_new, **new})


@dataclass(frozen=True, slots=True, kw_only=True)
class AtCut:
    """What an evidence has of some keys: how many, how many in one result only, in how many the texts of both differ."""

    keys: int
    one_sided: int
    differing: int


def at_cut(fold: Path, keys: Set[str]) -> AtCut:
    """Counts `keys` in the fold of an evidence."""
    known = one_sided = differing = 0
    for rows in _rows_of(fold, keys):
        import pyarrow.compute as pc

        _, live, new = rows.columns
        known += rows.num_rows
        one_sided += pc.sum(pc.xor(live.is_null(), new.is_null())).as_py() or 0
        # null where a side lacks the key, which a sum leaves out
        differing += pc.sum(pc.not_equal(live, new)).as_py() or 0
    return AtCut(keys=known, one_sided=one_sided, differing=differing)


def changed_ratio(evidence: EvidenceRecorded, touched: TouchUp, before: AtCut) -> float:
    """Share of all keys in which the results differ now: the evidence's counts, corrected by the touched keys.

    `before`: what the evidence has of these. Never too small. A diff may count keys as identical whose texts differ, by
    its tolerance, or as the same values are written otherwise: which ones isn't kept, only how many. So a touched key
    counts as differing now if its texts do, and of those that did before, as many as may have been such ones count
    as identical then.
    """
    if evidence.forward is None:
        raise SwitchyardError(f"evidence {evidence.id} has no delta", fix="run `switchyard diff` again")
    found = Comparison.from_json(evidence.summary)
    differed = found.total - found.identical
    # the evidence's delta has every key whose texts differ
    alike = max(0, evidence.forward.end - evidence.forward.start - differed)
    no_more = before.one_sided + max(0, before.differing - alike)
    nowhere = sum(touched.old[key] is None for key, new in touched.new.items() if new is None)
    total = found.total - before.keys + len(touched) - nowhere
    return (differed - no_more + touched.differing) / total if total else 0.0


class Since:
    """What a result has changed since the evidence: key -> last value, None: deleted; read on and on.

    `changes`: those up to `position`.
    """

    def __init__(self, position: ResultPosition, changes: dict[str, str | None] | None = None) -> None:
        self.position = position
        self.changes = changes if changes is not None else {}

    def read(self, client: Consumer, end: ResultPosition, timeout_s: float, go_on: Callable[[], None]) -> set[str]:
        """Reads on to `end`; returns the keys that came."""
        keys: set[str] = set()
        reached: dict[str, dict[int, int]] = {}
        for topic, offsets in end.topics.items():
            found, reached[topic] = read_changes(client, topic, self.position.of(topic), offsets, timeout_s, go_on)
            self.changes.update(found)
            keys |= found.keys()
        self.position = ResultPosition(topics=reached)
        return keys

    def now(self, settings: Settings, client: AdminClient) -> ResultPosition:
        """Where the result ends now, by its last stable offsets."""
        ends = {t: end_of(settings, t, len(offsets), client=client) for t, offsets in self.position.topics.items()}
        return ResultPosition(topics=ends)


class Delta:
    """The delta of one switch, to the release `to`. Raises SwitchyardError if the evidence has none.

    `begin` while the drivers meet, as consumers wait at its end: it reads what the results have so far, and writes what the
    new one has of it as a segment of its own; what fails in advance is done when it is needed.
    `advance` instead, before they are asked to, where that is too much to be read meanwhile.
    """

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
        self._closed = threading.Event()
        self._preparing: threading.Thread | None = None
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
        self._old, self._new = map(Since, self._evidence)
        self._recalled = False
        # the segment that was written in advance, and what it tells
        self._ahead: tuple[DeltaSegment, Mapping[str, str | None]] | None = None
        # what is known of both results in advance, and the keys that were touched by one alone then, or are since
        self._known = TouchUp(old={}, new={})
        self._open: set[str] = set()

    def begin(self) -> None:
        """Has a thread do in advance what can be."""
        self._preparing = threading.Thread(target=self._prepare, name="delta", daemon=True)
        self._preparing.start()

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
        if self._preparing is not None:
            self._preparing.join()

    def close(self) -> None:
        """Nothing is read or written after this."""
        self._closed.set()
        self.prepared()
        self._consumer.close()

    def touched(self, old_end: ResultPosition, new_end: ResultPosition) -> TouchUp:
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
        found = Since(kept.live_result, live), Since(kept.new_result, new)
        self._old, self._new = reversed(found) if self._reverse else found
        # nobody was told of these, and those that one alone touched were not looked up
        self._open |= live.keys() | new.keys()
        self._recalled = True

    def changed_ratio(self, touched: TouchUp) -> float:
        """Share of all keys in which the results differ at the switch cut."""
        return changed_ratio(self._recorded, touched, at_cut(self._fold, touched.new.keys()))

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
        try:
            self._recall()
            # at once: what comes later may lie behind the cut
            old_now, new_now = self._now(self._old), self._now(self._new)
            self._go_on()
            with ThreadPoolExecutor(1, "delta-topic") as pool:
                connected = pool.submit(self._topic.connect)
                self._read(self._new, new_now)
                connected.result()
            self._go_on()
            if self._new.changes:
                self._ahead = self._topic.append(self._new.changes.items()), dict(self._new.changes)
            self._read(self._old, old_now)
            # most of these the other side is about to touch: not worth a look into the fold
            self._open = self._old.changes.keys() ^ self._new.changes.keys()
        except Exception as error:
            # half of it would be wrong: what is read must be written or compared, too
            log.warning("the delta could not be begun in advance: %s", error)
            self._forget()
            # aborts what was begun, once it connects
            self._topic = DeltaTopic(self._settings, self._base.topic)

    def _go_on(self) -> None:
        if self._closed.is_set():
            raise SwitchyardError("the operation is over")

    def _read(self, result: Since, end: ResultPosition) -> set[str]:
        return result.read(self._consumer, end, self._settings.request_timeout_s, self._go_on)

    def _now(self, result: Since) -> ResultPosition:
        return result.now(self._settings, self._admin)


def _lookup(fold: Path, keys: Set[str]) -> dict[str, tuple[str | None, str | None]]:
    found: dict[str, tuple[str | None, str | None]] = {}
    for rows in _rows_of(fold, keys):
        for key, live, new in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            found[key] = live, new
    return found


def _rows_of(fold: Path, keys: Set[str]) -> Iterator[pa.RecordBatch]:
    """The rows of `keys`: key, live value, new value."""
    if not keys:
        return
    if not fold.exists():
        raise SwitchyardError(f"the evidence {fold} is gone", fix="run `switchyard diff` again")
    import pyarrow.compute as pc

    wanted = _strings(keys)
    for batch in _batches(fold):
        yield batch.filter(pc.is_in(batch.column("key"), value_set=wanted))


def _strings(values: Iterable[str]) -> pa.StringArray:
    # not pa.array: that loads pandas, which takes a second
    import pyarrow as pa

    data = [value.encode() for value in values]
    offsets = array("i", [0, *accumulate(map(len, data))])
    return pa.StringArray.from_buffers(len(data), pa.py_buffer(offsets), pa.py_buffer(b"".join(data)))
