"""Topics that several processes create at once."""

from __future__ import annotations

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


class Slow:
    """A cluster whose broker knows the topic from the `known_at`-th question on. `there`: its controller knows it before
    it is created. Remembers the last topic that it was asked to create.
    """

    def __init__(self, partitions: int, known_at: int, there: bool) -> None:
        self._partitions, self._there = partitions, there
        self.left = known_at
        self.asked: Any = None

    def create_topics(self, topics: list[Any], **_: Any) -> dict[str, Future[None]]:
        [self.asked] = topics
        answer: Future[None] = Future()
        if self._there:
            answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
        else:
            answer.set_result(None)
        return {topics[0].topic: answer}

    def list_topics(self, name: str | None = None, timeout: float = 0.0) -> Any:
        # without a name, it is asked for its brokers
        self.left -= name is not None
        if self.left > 0:
            found: Any = SimpleNamespace(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={})
        else:
            found = SimpleNamespace(error=None, partitions=dict.fromkeys(range(self._partitions)))
        return SimpleNamespace(topics={name: found})


def ensure(cluster: Slow, partitions: int, settings: Settings = SETTINGS) -> bool:
    return ensure_topic(settings, "lines", partitions, APPEND_ONLY, client=cast(AdminClient, cluster))


@pytest.mark.parametrize("there", [False, True])
def test_the_broker_knows_a_topic_that_was_created_whoever_did_it(there: bool) -> None:
    cluster = Slow(4, 3, there)
    assert ensure(cluster, 4) is not there
    assert cluster.left == 0


def test_a_topic_has_the_settings_that_it_is_given_and_as_many_replicas_as_configured() -> None:
    cluster = Slow(4, 1, False)
    ensure(cluster, 4, SETTINGS.model_copy(update={"replication_factor": 3}))
    asked = cluster.asked
    assert (asked.topic, asked.num_partitions, asked.replication_factor) == ("lines", 4, 3)
    assert asked.config == {**APPEND_ONLY, "min.insync.replicas": "2"}


@pytest.mark.parametrize(("replicas", "in_sync"), [(1, None), (2, None), (3, "2"), (4, "3"), (5, "3")])
def test_more_than_half_of_three_or_more_replicas_must_have_a_record(replicas: int, in_sync: str | None) -> None:
    cluster = Slow(1, 1, False)
    ensure(cluster, 1, SETTINGS.model_copy(update={"replication_factor": replicas}))
    assert cluster.asked.config.get("min.insync.replicas") == in_sync


# by itself the client would wait for a minute
@pytest.mark.timeout(30)
@pytest.mark.slow
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
    with pytest.raises(Unavailable, match=r"no Kafka broker answers at 127\.0\.0\.1:1"):
        change(SETTINGS.model_copy(update={"request_timeout_s": 0.5}))


def test_one_with_another_number_of_partitions_is_refused() -> None:
    with pytest.raises(Refused, match="lines has 4 partitions, not 2"):
        ensure(Slow(4, 1, True), 2)
