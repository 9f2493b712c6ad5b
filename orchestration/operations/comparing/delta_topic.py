"""The topic of a delta: the records that take a consumer of a table from one result to the other."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Producer

from orchestration.operations.comparing.evidence import evidence_path
from orchestration.operations.comparing.fold_file import differing_rows
from orchestration.operations.comparing.tags import of_results, split
from pipelines.errors import Unavailable
from pipelines.kafka.client import admin, await_connection, producer
from pipelines.kafka.offsets import end_of
from pipelines.kafka.topics import APPEND_ONLY, ensure_topic
from pipelines.model.entries import DeltaSegment
from pipelines.model.names import RESULT, delta_topic
from pipelines.settings import Settings

Headers = list[tuple[str, str | bytes | None]]


class DeltaTopic:
    """The topic of the deltas of a diff's evidence: one partition, one transaction per segment. `connect` takes 65-500
    ms.
    """

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._admin = admin(settings)
        self._producer: Producer | None = None

    def connect(self) -> Producer:
        """The producer. Connecting fences an earlier operator's producer of this topic."""
        if self._producer is None:
            client = producer(self._settings, transactional_id=self._topic, transaction_timeout_ms=300_000)
            await_connection(client, self._topic)
            client.init_transactions(self._settings.request_timeout_s)
            self._producer = client
        return self._producer

    def append(self, changes: Iterable[tuple[str, str | None]]) -> DeltaSegment:
        """Appends (key, value or None for a tombstone) records in one transaction; returns their range.

        A tagged key is written without its tag, which becomes the record's header `result`.
        """
        client = self.connect()
        start = end_of(self._settings, self._topic, 1, committed=False, client=self._admin)[0]
        client.begin_transaction()
        for tagged, value in changes:
            result, key = split(tagged)
            headers: Headers | None = [(RESULT, result.encode())] if result else None
            while True:
                try:
                    client.produce(self._topic, value, key, partition=0, headers=headers)
                    break
                except BufferError:
                    client.poll(0.1)
        if client.flush(self._settings.request_timeout_s * 6):
            raise Unavailable(
                f"delta topic {self._topic} could not be written in time", fix="see the broker's log, then try again"
            )
        end = end_of(self._settings, self._topic, 1, committed=False, client=self._admin)[0]
        client.commit_transaction(self._settings.request_timeout_s)
        return DeltaSegment(topic=self._topic, start=start, end=end)


def write_delta(
    settings: Settings, app: str, evidence: str, tables: frozenset[str]
) -> tuple[DeltaSegment, DeltaSegment]:
    """Writes the delta topic of a diff's evidence from its fold. `tables`: the results that are tables. Returns the
    segments that take their consumers from live to new (forward) and back (backward).
    """
    path, topic = evidence_path(settings, evidence), delta_topic(app, evidence)
    ensure_topic(settings, topic, 1, APPEND_ONLY)
    writer = DeltaTopic(settings, topic)
    forward = writer.append(of_results(((k, new) for k, live, new in differing_rows(path)), tables))
    backward = writer.append(of_results(((k, live) for k, live, new in differing_rows(path)), tables))
    return forward, backward
