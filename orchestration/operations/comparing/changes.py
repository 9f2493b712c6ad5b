"""What one result has changed since a diff, read step by step."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from orchestration.operations.comparing.tags import tagged
from pipelines.kafka.offsets import ends_of
from pipelines.kafka.records import read_changes
from pipelines.model.names import result_of
from pipelines.model.positions import ResultPosition
from pipelines.settings import Settings


class Changes:
    """What a result has changed since the evidence, read step by step.

    `changes`: key, tagged if the app has several results -> last value (None: deleted), up to `position`.
    """

    def __init__(self, position: ResultPosition, changes: dict[str, str | None] | None = None) -> None:
        self.position = position
        self.changes = changes if changes is not None else {}

    def read(
        self, client: Consumer, end: ResultPosition, timeout_s: float, raise_if_closed: Callable[[], None]
    ) -> set[str]:
        """Continues to read up to `end`. Returns the keys that were written in between."""
        keys: set[str] = set()
        reached: dict[str, dict[int, int]] = {}
        for topic, offsets in end.topics.items():
            read, reached[topic] = read_changes(
                client, topic, self.position.of(topic), offsets, timeout_s, raise_if_closed
            )
            name = result_of(topic)
            found = tagged(name, read) if name else read
            self.changes.update(found)
            keys |= found.keys()
        self.position = ResultPosition(topics=reached)
        return keys

    def now(self, settings: Settings, client: AdminClient) -> ResultPosition:
        """The current end of the result: its last stable offsets."""
        counts = {topic: len(offsets) for topic, offsets in self.position.topics.items()}
        return ResultPosition(topics=ends_of(settings, counts, client=client))
