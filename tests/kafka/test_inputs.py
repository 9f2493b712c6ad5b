"""What Kafka says about the topics of a release, asked of a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Message, Producer

from pipelines.kafka.client import producer, producer_config
from pipelines.kafka.inputs import inputs_now, replication
from pipelines.kafka.topics import INPUT
from pipelines.model.missing import Replication
from pipelines.settings import Settings

pytestmark = pytest.mark.broker

HOUR_MS, INPUT_MS = 3_600_000, 10_000


@pytest.mark.parametrize(
    ("config", "ahead_ms", "compacted"),
    [
        ({}, HOUR_MS, False),
        (INPUT, INPUT_MS, False),
        ({"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact,delete"}, 0, True),
        ({"message.timestamp.after.max.ms": str(2**63 - 1)}, 2**63 - 1, False),
    ],
    ids=["default", "input", "stamped", "any"],
)
def test_a_topic_says_how_far_ahead_a_record_may_be_dated_and_whether_it_is_compacted(
    broker: Settings, fresh_topic: Callable[..., str], config: dict[str, str], ahead_ms: int, compacted: bool
) -> None:
    topic = fresh_topic(1, **{name.replace(".", "_"): value for name, value in config.items()})
    found = inputs_now(broker, [topic, "no-such-topic"])
    assert [(name, known.ahead_ms, known.compacted) for name, known in found.items()] == [(topic, ahead_ms, compacted)]


def test_a_record_from_the_future_is_refused_with_its_whole_batch(
    broker: Settings, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic(1, message_timestamp_after_max_ms=str(INPUT_MS))
    told: list[tuple[bytes | None, str]] = []

    def tell(error: KafkaError | None, message: Message) -> None:
        told.append((message.value(), "written" if error is None else error.name()))

    # all in one batch
    producer = Producer({**producer_config(broker), "linger.ms": 500})
    now_ms = int(time.time() * 1000)
    for value, ahead_ms in (("a", 0), ("b", HOUR_MS), ("c", 0)):
        producer.produce(topic, value, timestamp=now_ms + ahead_ms, on_delivery=tell)
    assert producer.flush(30) == 0
    assert told == [(value, "INVALID_TIMESTAMP") for value in (b"a", b"b", b"c")]


def test_a_topic_says_what_it_deletes_and_how_many_replicas_it_has(
    broker: Settings, fresh_topic: Callable[..., str]
) -> None:
    week_ms = 7 * 24 * HOUR_MS
    limited = fresh_topic(2, retention_bytes="1000", unclean_leader_election_enable="true")
    kept = fresh_topic(1, retention_ms="-1")
    compacted = fresh_topic(1, cleanup_policy="compact")
    found = inputs_now(broker, [limited, kept, compacted])
    assert found[limited].limits == {"retention.ms": week_ms, "retention.bytes": 1000}
    assert found[kept].limits == found[compacted].limits == {}
    assert [(each.replicas, each.in_sync) for each in found.values()] == [(1, 1)] * 3
    assert {topic for topic, known in found.items() if known.unclean} == {limited}


def test_kafka_s_own_topics_say_how_they_are_kept_as_any_topic_does(
    broker: Settings, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic(2, unclean_leader_election_enable="true")
    # the first transaction creates it
    producer(broker, transactional_id=topic).init_transactions(60)
    one = Replication(replicas=1, in_sync=1, unclean=False)
    assert replication(broker, ["__transaction_state", topic, "no-such-topic"]) == {
        "__transaction_state": one,
        topic: Replication(replicas=1, in_sync=1, unclean=True),
    }


@pytest.mark.parametrize(("ahead_ms", "refused"), [(INPUT_MS // 2, False), (INPUT_MS * 2, True)])
def test_the_broker_refuses_a_record_that_is_dated_too_far_ahead(
    broker: Settings, fresh_topic: Callable[..., str], ahead_ms: int, refused: bool
) -> None:
    topic = fresh_topic(1, **{name.replace(".", "_"): value for name, value in INPUT.items()})
    answers: list[KafkaError | None] = []
    producer = Producer(producer_config(broker))
    producer.produce(
        topic,
        b"{}",
        timestamp=int(time.time() * 1000) + ahead_ms,
        on_delivery=lambda error, _: answers.append(error),
    )
    assert producer.flush(30) == 0
    [error] = answers
    assert (error is not None and error.code() == KafkaError.INVALID_TIMESTAMP) == refused
