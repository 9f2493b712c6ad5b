"""A consumer that is kept between reads of tails reads the same as a new one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from pipelines.errors import Unavailable
from pipelines.kafka import kept as module
from pipelines.kafka import log
from pipelines.kafka.kept import Kept, reading
from pipelines.kafka.log import FencedWriter, read_tail
from pipelines.settings import Settings
from tests.kafka.test_offsets import Clock


class Client:
    """A consumer that only records what happens to it."""

    def __init__(self, *_: object) -> None:
        self.closed = self.unassigned = 0

    def unassign(self) -> None:
        self.unassigned += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    clients: list[Client] = []

    def make(_: Settings) -> Client:
        clients.append(Client())
        return clients[-1]

    monkeypatch.setattr(module, "tail_consumer", make)
    return clients


def test_one_is_made_when_it_is_needed_and_kept_until_there_is_trouble(made: list[Client]) -> None:
    kept = Kept(Settings())
    assert made == []
    for _ in range(2):
        with kept.borrowed() as client:
            assert id(client) == id(made[0])
    # while assigned, it would keep fetching
    assert (len(made), made[0].unassigned, made[0].closed) == (1, 2, 0)
    with pytest.raises(ValueError), kept.borrowed():
        raise ValueError
    assert made[0].closed == 1
    with kept.borrowed():
        pass
    kept.close()
    kept.close()
    assert (len(made), made[1].closed) == (2, 1)


def test_another_thread_waits_for_its_turn(made: list[Client]) -> None:
    kept, began = Kept(Settings()), threading.Event()

    def read() -> int:
        began.set()
        with kept.borrowed():
            return made[0].unassigned

    with ThreadPoolExecutor(1) as pool:
        with kept.borrowed():
            later = pool.submit(read)
            assert began.wait(10) and not later.done()
        assert later.result(10) == 1
    assert len(made) == 1


def test_a_read_of_its_own_keeps_nothing(made: list[Client]) -> None:
    with module.borrowed(Settings(), None):
        assert made[0].closed == 0
    assert made[0].closed == 1


def stale() -> KafkaException:
    return KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH))


def test_one_that_knows_the_cluster_as_it_was_is_replaced_and_the_read_made_again(made: list[Client]) -> None:
    kept, asked = Kept(Settings()), list[int]()
    assert reading(Settings(), kept, lambda _: "before") == "before"

    def read(_: Consumer) -> str:
        asked.append(len(made))
        if len(asked) == 1:
            raise stale()
        return "after"

    assert reading(Settings(), kept, read) == "after"
    assert asked == [1, 2] and made[0].closed == 1 and made[1].closed == 0


def test_what_fails_with_a_new_one_is_not_asked_again(made: list[Client]) -> None:
    def read(_: Consumer) -> str:
        raise stale()

    for kept in (Kept(Settings()), None):
        made.clear()
        with pytest.raises(KafkaException):
            reading(Settings(), kept, read)
        assert len(made) == 1 and made[0].closed == 1


@pytest.mark.broker
def test_one_reads_several_topics_in_turn_and_what_has_come_since(
    broker: Settings, fresh_topic: Callable[..., str]
) -> None:
    one, other, kept = fresh_topic(), fresh_topic(), Kept(broker)
    try:
        for number in range(4):
            for topic in (one, other):
                value = f"{topic} {number}".encode()
                FencedWriter(broker, topic, topic).append(lambda value=value: [value])  # type: ignore[misc]
            for topic in (one, other, one):
                expected = [f"{topic} {n}".encode() for n in range(number + 1)]
                assert read_tail(broker, topic, kept=kept) == expected[-1:]
                assert read_tail(broker, topic, 10, kept=kept) == expected == read_tail(broker, topic, 10)
    finally:
        kept.close()


class Tail(Client):
    """A consumer of a topic with one record. One that is `stale` knows an older topic of that name: nothing comes."""

    def __init__(self, clock: Clock, *, stale: bool) -> None:
        super().__init__()
        self._clock = clock
        self.coming: list[Any] = [] if stale else [Came(b"newest"), Came(None)]

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        return 0, 1

    def assign(self, *_: object) -> None:
        """There is one partition."""

    def poll(self, timeout_s: float) -> Any:
        if self.coming:
            return self.coming.pop(0)
        self._clock.sleep(timeout_s)
        return None

    def consume(self, **_: object) -> list[Any]:
        return []


class Came:
    """A record, or the end of the topic."""

    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def error(self) -> KafkaError | None:
        return None if self._value is not None else KafkaError(KafkaError._PARTITION_EOF)

    def value(self) -> bytes | None:
        return self._value


def test_a_topic_that_was_recreated_since_is_read_by_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, clock = Settings(), Clock()
    monkeypatch.setattr(log, "time", clock)
    clients = iter(Tail(clock, stale=stale) for stale in (False, False, True))
    monkeypatch.setattr(module, "tail_consumer", lambda _: next(clients))
    kept = Kept(settings)
    assert read_tail(settings, "a.v1.progress", kept=kept) == [b"newest"]
    # the first one gets nothing of the new topic
    assert read_tail(settings, "a.v1.progress", kept=kept) == [b"newest"]
    # without one that was kept, nobody answers
    with pytest.raises(Unavailable, match="no Kafka broker answers"):
        read_tail(settings, "a.v1.progress")


def test_one_that_does_not_find_a_recreated_topic_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, clock = Settings(request_timeout_s=0.05), Clock()
    monkeypatch.setattr(log, "partition_count", lambda *_: 1)

    class Lost(Tail):
        """Knew the topic before it was recreated, and never finds it again."""

        reads = 0

        def get_watermark_offsets(self, *about: Any, **more: Any) -> tuple[int, int]:
            self.reads += 1
            if self.reads > 1:
                raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
            return super().get_watermark_offsets(*about, **more)

    clients = iter([Lost(clock, stale=False), Tail(clock, stale=False)])
    monkeypatch.setattr(module, "tail_consumer", lambda _: next(clients))
    kept = Kept(settings)
    assert read_tail(settings, "a.v1.progress", kept=kept) == [b"newest"]
    assert read_tail(settings, "a.v1.progress", kept=kept) == [b"newest"]
    assert next(clients, None) is None
