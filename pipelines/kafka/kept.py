"""A consumer that is kept between reads: a new one for each read costs a connection and a full metadata request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from confluent_kafka import Consumer, KafkaException

from pipelines.kafka.client import consumer
from pipelines.settings import Settings

Found = TypeVar("Found")


def tail_consumer(settings: Settings) -> Consumer:
    """A consumer for a topic's newest records: it reports the end, and a fetch there returns soon."""
    return consumer(settings, auto_offset_reset="earliest", fetch_wait_max_ms=1, enable_partition_eof=True)


class Kept:
    """A consumer for repeated reads of tails. One read at a time: other threads wait.

    It is created at the first read. After a failed read, the next one creates another.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._client: Consumer | None = None

    @property
    def has_one(self) -> bool:
        """Whether the next read gets a consumer that has read before."""
        return self._client is not None

    @contextmanager
    def borrowed(self) -> Iterator[Consumer]:
        """The consumer, with nothing assigned."""
        with self._lock:
            client, self._client = self._client or tail_consumer(self._settings), None
            try:
                yield client
                # an assigned consumer would keep fetching
                client.unassign()
            except BaseException:
                client.close()
                raise
            self._client = client

    def close(self) -> None:
        """Closes the connection; a later read opens another."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


@contextmanager
def borrowed(settings: Settings, kept: Kept | None) -> Iterator[Consumer]:
    """The consumer of `kept`, or one for this read alone."""
    if kept is not None:
        with kept.borrowed() as client:
            yield client
        return
    client = tail_consumer(settings)
    try:
        yield client
    finally:
        client.close()


def reading(settings: Settings, kept: Kept | None, read: Callable[[Consumer], Found]) -> Found:
    """What `read` returns, with the consumer of `kept`, or with one for this read alone.

    A kept consumer knows the cluster as it was: after a broker restart it asks with an outdated leader epoch. So if
    `read` fails with it, `read` is called again with a new one. Raises KafkaException.
    """
    known = kept is not None and kept.has_one
    try:
        with borrowed(settings, kept) as client:
            return read(client)
    except KafkaException:
        if not known:
            raise
    with borrowed(settings, kept) as client:
        return read(client)
