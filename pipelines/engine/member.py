"""A live member of the release's consumer group, so that Kafka's own tools see it and refuse to reset it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from pipelines.kafka.client import consumer
from pipelines.settings import Settings


class GroupMember:
    """Joins group `group` on `topics` and reads nothing. The sink's transactions commit the offsets."""

    def __init__(self, settings: Settings, group: str, topics: Sequence[str]) -> None:
        self._consumer = consumer(
            settings,
            group_id=group,
            auto_offset_reset="earliest",
            client_id=f"{group}-driver",
            session_timeout_ms=10_000,
        )
        self._consumer.subscribe(list(topics), on_assign=_pause)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group-member", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leaves the group."""
        self._stopped.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopped.is_set():
            # nothing comes; this is how long leaving may wait
            self._consumer.poll(0.1)
        self._consumer.close()


def _pause(client: Consumer, partitions: list[TopicPartition]) -> None:
    client.assign(partitions)
    try:
        client.pause(partitions)
    except KafkaException:
        # revoked in the meantime: another assignment follows
        return
