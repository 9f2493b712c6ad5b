"""Transactional producers of the tests' own."""

from __future__ import annotations

from confluent_kafka import Producer

from pipelines.kafka.client import await_connection, producer
from pipelines.kafka.offsets import end_of
from pipelines.settings import Settings
from tests.shared.waiting import until


def transactional(settings: Settings, name: str, topic: str) -> Producer:
    """A producer, by the transactional id `name`, that can begin a transaction at once; `topic` is one that exists."""
    client = producer(settings, transactional_id=name, linger_ms=0)
    # else half a second goes by: librdkafka asks for its coordinator before it is connected, and then again
    await_connection(client, topic)
    client.init_transactions(60)
    return client


def await_ends(settings: Settings, topic: str, partitions: int) -> None:
    """Waits until what was committed, or aborted, can be read: the client is told so before the topic is."""

    def same() -> bool:
        return end_of(settings, topic, partitions) == end_of(settings, topic, partitions, committed=False)

    until(f"{topic} has an open transaction", same, 60, poll_s=0.01)
