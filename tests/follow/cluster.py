"""An alias on a real broker without drivers: releases whose batches, and a registry whose entries, a test writes."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipelines.kafka.offsets import end_of
from pipelines.kafka.registry import Registry
from pipelines.kafka.topics import APPEND_ONLY, PROGRESS, RESULT_STREAM, delete_topics, ensure_topic
from pipelines.model.entries import DeltaSegment, Entry, MarkOrdered, Opened, Promoted, Staged, Switch, SwitchAborted
from pipelines.model.names import delta_topic, progress_topic, result_topic
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Mark, Progress
from pipelines.model.registry import RegistryState
from pipelines.model.switch import promotion
from pipelines.settings import Settings
from tests.operations.builders import spec
from tests.shared.transactions import transactional

Row = tuple[int, str, str | None]
# a deadline that is a date: others who share this registry list its operations
FAR_MS = 4_000_000_000_000


class Release:
    """A release's topics, written as its driver writes them: a transaction per batch, progress in it."""

    def __init__(self, settings: Settings, name: str, partitions: int) -> None:
        self.settings, self.name, self.partitions = settings, name, partitions
        self.topic = result_topic(name, 1)
        ensure_topic(settings, self.topic, partitions, RESULT_STREAM)
        ensure_topic(settings, progress_topic(name), 1, PROGRESS)
        self._producer = transactional(settings, name, self.topic)
        self._batches = itertools.count()
        self.barrier: Mark | None = None
        self.result = ResultPosition(topics={self.topic: dict.fromkeys(range(partitions), 0)})

    def batch(self, rows: Iterable[Row] = (), *, barrier: str | None = None, abort: bool = False) -> ResultPosition:
        """Writes (partition, key, value) rows as one batch and returns the result position.

        `barrier`: the operation that its boundary is flagged for; `abort`: written, and then not committed.
        """
        self._producer.begin_transaction()
        for partition, key, value in rows:
            self._producer.produce(self.topic, value, key, partition=partition, headers=[("source", b"in:0:0")])
        self._producer.flush(60)
        if abort:
            self._producer.abort_transaction(60)
            return self.result
        ends = end_of(self.settings, self.topic, self.partitions, committed=False)
        self.result = ResultPosition(topics={self.topic: ends})
        number = next(self._batches)
        boundary = Boundary(batch_id=number, position=SourcePosition(sources={"in": {0: number}}))
        if barrier is not None:
            self.barrier = Mark(op=barrier, boundary=boundary, result=self.result)
        progress = Progress(
            release=self.name,
            generation=1,
            token=1,
            boundary=boundary,
            result=self.result,
            at_ms=0,
            barrier=self.barrier,
        )
        self._producer.produce(
            progress_topic(self.name), progress.model_dump_json(exclude_none=True), str(number), partition=0
        )
        self._producer.commit_transaction(60)
        return self.result


@dataclass
class Cluster:
    """An alias of its own per test. Release n of it is `<alias>.vn`."""

    settings: Settings
    partitions: int = 2
    alias: str = field(default_factory=lambda: f"sums-{uuid.uuid4().hex[:8]}")
    releases: dict[int, Release] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry = Registry(self.settings)

    def close(self) -> None:
        self.registry.close()
        names = [n for r in self.releases.values() for n in (r.topic, progress_topic(r.name))]
        delete_topics(self.settings, [*names, *self.topics])

    @property
    def state(self) -> RegistryState:
        return self.registry.state()

    def write(self, *entries: Entry) -> None:
        self.registry.step(lambda _: entries)

    def release(self, version: int, **changes: Any) -> Release:
        """Staged if it is not yet. `changes`: of its spec."""
        if version not in self.releases:
            self.releases[version] = Release(self.settings, f"{self.alias}.v{version}", self.partitions)
            known = spec(self.releases[version].name, partitions=self.partitions, **changes)
            self.write(Staged(spec=known))
        return self.releases[version]

    def first(self) -> Release:
        """Release 1, live as switch 1."""
        release = self.release(1)
        op = self.open(release.name)
        switch = self._switch(1, None, None, release, release.result)
        self.registry.step(lambda state: promotion(state, self.alias, op, switch))
        return release

    def open(self, *releases: str) -> str:
        op = f"op-{uuid.uuid4().hex[:8]}"
        self.write(Opened(id=op, name="promote", releases=releases, alias=self.alias, deadline_ms=FAR_MS))
        return op

    def order(self, op: str, live: Release) -> None:
        """The intent of a switch."""
        past = SourcePosition(sources={"in": {0: 0}})
        number = len(self.state.chains[self.alias]) + 1
        self.write(
            MarkOrdered(id=op, release=live.name, past=past, switch=number, alias=self.alias, deadline_ms=FAR_MS)
        )

    def intend(self, live: Release, new: Release, rows: Iterable[Row] = ()) -> str:
        """A switch up to its barrier, flagged at the end of a batch of `rows`."""
        op = self.open(live.name, new.name)
        self.order(op, live)
        live.batch(rows, barrier=op)
        return op

    def promote(
        self, op: str, live: Release, new: Release, start: ResultPosition, delta: tuple[DeltaSegment, ...] = ()
    ) -> None:
        assert live.barrier is not None and live.barrier.op == op
        number = len(self.state.chains[self.alias]) + 1
        switch = self._switch(number, live, live.barrier.result, new, start, delta)
        self.registry.step(lambda state: promotion(state, self.alias, op, switch))

    def abort(self, op: str) -> None:
        self.write(SwitchAborted(alias=self.alias, id=op))

    def switch(self, live: Release, new: Release, delta: tuple[DeltaSegment, ...] = ()) -> None:
        """A whole switch at the ends of both results as they are."""
        self.promote(self.intend(live, new), live, new, new.result, delta)

    def delta(self, rows: list[tuple[str, str | None]], topic: str | None = None) -> DeltaSegment:
        """A delta segment of (key, value or None), with a gap before and after it, as transactions leave them."""
        topic = topic or delta_topic(self.alias, uuid.uuid4().hex[:8])
        if topic not in self.topics:
            ensure_topic(self.settings, topic, 1, APPEND_ONLY)
            self.topics.append(topic)
        client = transactional(self.settings, topic, topic)
        start = end_of(self.settings, topic, 1, committed=False)[0]
        client.begin_transaction()
        for key, value in rows:
            client.produce(topic, value, key, partition=0)
        client.flush(60)
        end = end_of(self.settings, topic, 1, committed=False)[0]
        client.commit_transaction(60)
        return DeltaSegment(topic=topic, start=start, end=end)

    @staticmethod
    def _switch(
        number: int,
        old: Release | None,
        old_end: ResultPosition | None,
        new: Release,
        start: ResultPosition,
        delta: tuple[DeltaSegment, ...] = (),
    ) -> Switch:
        more: dict[str, Any] = {"old": old.name if old else None, "old_generation": 1 if old else None}
        return Switch(
            number=number, **more, old_end=old_end, new=new.name, new_generation=1, new_start=start, delta=delta
        )


__all__ = ["Cluster", "Promoted", "Release"]
