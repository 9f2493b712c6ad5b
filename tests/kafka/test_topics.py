"""Topics that several processes create at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from pipelines.errors import Refused, Unavailable
from pipelines.kafka.offsets import delete_group
from pipelines.kafka.topics import APPEND_ONLY, delete_topics, ensure_topic
from pipelines.settings import Settings

SETTINGS = Settings(bootstrap_servers="127.0.0.1:1")


class MadeByAnother:
    """A cluster whose controller already has the topic; its broker knows it from the `known_at`-th question on."""

    def __init__(self, partitions: int, known_at: int) -> None:
        self._partitions, self._left = partitions, known_at

    def create_topics(self, topics: list[Any], **_: Any) -> dict[str, Future[None]]:
        answer: Future[None] = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
        return {topics[0].topic: answer}

    def list_topics(self, name: str, timeout: float) -> Any:
        self._left -= 1
        if self._left > 0:
            found: Any = SimpleNamespace(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={})
        else:
            found = SimpleNamespace(error=None, partitions=dict.fromkeys(range(self._partitions)))
        return SimpleNamespace(topics={name: found})


def ensure(partitions: int, *, known_at: int) -> bool:
    client = cast(AdminClient, MadeByAnother(4, known_at))
    return ensure_topic(SETTINGS, "lines", partitions, APPEND_ONLY, client=client)


def test_one_that_another_has_just_made_is_there_though_the_broker_does_not_know_of_it_yet() -> None:
    assert ensure(4, known_at=3) is False


@pytest.mark.parametrize(
    "change",
    [
        lambda settings: ensure_topic(settings, "lines", 1, APPEND_ONLY),
        lambda settings: delete_topics(settings, ["lines"]),
        lambda settings: delete_group(settings, "sums.v1"),
    ],
    ids=["create a topic", "delete a topic", "delete a group"],
)
def test_a_change_that_nobody_answers_is_given_up_in_time(change: Callable[[Settings], object]) -> None:
    begun = time.monotonic()
    with pytest.raises(Unavailable, match=r"no Kafka broker answers at 127\.0\.0\.1:1"):
        change(SETTINGS.model_copy(update={"request_timeout_s": 0.5}))
    assert time.monotonic() - begun < 5


def test_one_with_another_number_of_partitions_is_refused() -> None:
    with pytest.raises(Refused, match="lines has 4 partitions, not 2"):
        ensure(2, known_at=1)
