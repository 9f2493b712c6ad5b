"""Compares what two streams have written since their diff, record by record, up to the cut where consumers switch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from confluent_kafka import Message

from orchestration.operations.comparing.since import InAdvance, changed_ratio
from pipelines.kafka.client import admin, consumer
from pipelines.kafka.offsets import ends_of
from pipelines.kafka.records import read_records
from pipelines.model.entries import EvidenceRecorded
from pipelines.model.names import result_of
from pipelines.model.positions import ResultPosition
from pipelines.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """`records`: how many came since the evidence, in the result that got more. `differing`: how many only one result
    has.
    """

    records: int
    differing: int

    def __len__(self) -> int:
        return self.records

    @property
    def ratio(self) -> float:
        return self.differing / self.records if self.records else 0.0


class Tally:
    """Counts the records of two streams by key, source record and value: up for the new result, down for the old one.

    A record that both have takes no memory. Only a record that was read from just one result takes memory, about 150
    bytes.
    """

    def __init__(self) -> None:
        self._left: dict[bytes, int] = {}
        self._counts = [0, 0]

    def add(self, identity: bytes, *, new: bool) -> None:
        """Counts one record of the old or of the new result."""
        self._counts[new] += 1
        count = self._left.get(identity, 0) + (1 if new else -1)
        if count:
            self._left[identity] = count
        else:
            self._left.pop(identity, None)

    @property
    def since(self) -> Disagreement:
        more = sum(count for count in self._left.values() if count > 0)
        less = -sum(count for count in self._left.values() if count < 0)
        # a changed record counts on both sides
        return Disagreement(records=max(self._counts), differing=max(more, less))


def identity_of(message: Message, result: str = "") -> bytes:
    """A 16-byte hash of the result's name, key, source record and value, by which a diff tells records apart."""
    headers: dict[str, Any] = dict(message.headers() or ())
    source = headers.get("source") or b""
    parts = (result.encode(), message.key() or b"", source, message.value() or b"")
    return blake2b(b"".join(len(part).to_bytes(4, "big") + part for part in parts), digest_size=16).digest()


class Agreement:
    """What two streams have written since their evidence, for a switch to release `to`: a `Since`."""

    counts, came = "records", "came"

    def __init__(self, settings: Settings, evidence: EvidenceRecorded, *, to: str) -> None:
        since = evidence.live_result, evidence.new_result
        self._cut = tuple(reversed(since)) if evidence.live == to else since
        self._settings = settings
        self._admin = admin(settings)
        self._consumer = consumer(
            settings, auto_offset_reset="earliest", enable_partition_eof=True, fetch_wait_max_ms=20
        )
        self._evidence = evidence
        self._in_advance = InAdvance("agreement", "the records since the diff could not be read in advance")
        self._forget()

    def _forget(self) -> None:
        self._read = list(self._cut)
        self._tally = Tally()

    def begin(self) -> None:
        """Starts a thread that reads what there is."""
        self._in_advance.begin(self._prepare, self._forget)

    def advance(self, raise_if_closed: Callable[[], None], few: int) -> None:
        """Reads until no more than `few` records arrive while it reads. Calls `raise_if_closed` now and then, which may raise."""
        came = True
        while came:
            ends = [self._now(position) for position in self._read]
            many = sum(end.records_since(at) for end, at in zip(ends, self._read, strict=True)) > few
            # transaction markers count as offsets, but are never read
            came = self._read_to(ends, raise_if_closed) and many

    def read_to(self, old_end: ResultPosition, new_end: ResultPosition) -> Disagreement:
        """Compares what both wrote between the evidence cut and the switch cut."""
        self._in_advance.wait()
        ends = [old_end, new_end]
        if not all(end.dominates(at) for end, at in zip(ends, self._read, strict=True)):
            # a resumed operation may have read past the cut; start again
            self._forget()
        self._read_to(ends, self._in_advance.raise_if_closed)
        return self._tally.since

    def changed_ratio(self, found: Disagreement) -> float:
        """Share of all records in which the streams differ at the switch cut."""
        return changed_ratio(self._evidence, more=found.records, differing=found.differing)

    def write(self, found: Disagreement) -> tuple[()]:
        """Writes nothing: consumers of a stream continue with the first record after the cut."""
        return ()

    def close(self) -> None:
        """Ends the reading."""
        self._in_advance.close()
        self._consumer.close()

    def _prepare(self) -> None:
        self._read_to([self._now(position) for position in self._read], self._in_advance.raise_if_closed)

    def _now(self, position: ResultPosition) -> ResultPosition:
        counts = {topic: len(offsets) for topic, offsets in position.topics.items()}
        return ResultPosition(topics=ends_of(self._settings, counts, client=self._admin))

    def _read_to(self, ends: list[ResultPosition], raise_if_closed: Callable[[], None]) -> bool:
        """Reads up to `ends`. Returns whether there was anything to read."""
        came = False
        for side, end in enumerate(ends):
            reached = {}
            for topic, offsets in end.topics.items():
                start, name = self._read[side].of(topic), result_of(topic)
                reached[topic] = dict(start)
                for messages in read_records(
                    self._consumer,
                    topic,
                    start,
                    offsets,
                    self._settings.request_timeout_s,
                    raise_if_closed,
                    reached[topic],
                ):
                    for message in messages:
                        self._tally.add(identity_of(message, name), new=bool(side))
                        came = True
            self._read[side] = ResultPosition(topics=reached)
        return came
