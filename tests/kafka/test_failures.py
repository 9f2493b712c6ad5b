"""What Kafka's errors mean to a person, a driver and a follower."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from pipelines.engine.outages import is_outage
from pipelines.errors import BadUsage, LoginRefused, Refused, SwitchyardError, Unavailable
from pipelines.kafka import client
from pipelines.kafka.client import admin, consumer, producer, require_broker
from pipelines.kafka.failures import failure
from pipelines.kafka.log import FencedWriter
from pipelines.kafka.topics import partition_count
from pipelines.settings import Settings

SETTINGS = Settings(bootstrap_servers="kafka:9092")
NOT_REACHED = [
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._MSG_TIMED_OUT,
]
FOR_NOW = [
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.REBALANCE_IN_PROGRESS,
]
FOR_GOOD = [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.POLICY_VIOLATION]


@pytest.mark.parametrize("code", NOT_REACHED)
def test_without_an_answer_no_broker_answers(code: int) -> None:
    found = failure(SETTINGS, KafkaError(code))
    assert isinstance(found, Unavailable)
    assert found.what.startswith("no Kafka broker answers at kafka:9092: ")
    assert "SWITCHYARD_BOOTSTRAP_SERVERS" in found.fix
    assert is_outage(found) and is_outage(KafkaException(KafkaError(code)))


class SlowBroker:
    """An admin client whose broker answers after `answers_s`. Each question without an answer takes a second."""

    def __init__(self, answers_s: float, refuses: Callable[[], None]) -> None:
        self.now_s, self._answers_s, self._refuses = 0.0, answers_s, refuses

    def monotonic(self) -> float:
        return self.now_s

    def poll(self, _: float) -> None:
        self._refuses()

    def list_topics(self, timeout: float) -> None:
        if self.now_s < self._answers_s:
            self.now_s += max(timeout, 1.0)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.parametrize(("answers_s", "refuses", "found"), [(8, False, True), (12, False, False), (8, True, False)])
def test_a_slow_broker_is_waited_for_longer_than_one_that_refuses_connections(
    answers_s: float, refuses: bool, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = client._Errors()
    monkeypatch.setattr(client, "_Errors", lambda: errors)
    slow = SlowBroker(answers_s, lambda: errors(KafkaError(KafkaError._TRANSPORT)) if refuses else None)
    monkeypatch.setattr(client, "_made", lambda settings, make: slow)
    monkeypatch.setattr(client, "time", slow)
    if found:
        assert require_broker(SETTINGS) is cast("AdminClient", slow)
    else:
        with pytest.raises(Unavailable, match="no Kafka broker answers"):
            require_broker(SETTINGS)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (KafkaError._AUTHENTICATION, "refuses the login"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, "refuses the login"),
        (KafkaError._SSL, "no TLS connection"),
        (KafkaError._ALL_BROKERS_DOWN, "accepts connections and drops them"),
    ],
)
def test_a_login_that_is_refused_is_said(code: int, words: str) -> None:
    found = failure(SETTINGS, KafkaError(code))
    assert isinstance(found, Unavailable) and words in found.what


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("sslv3 alert certificate expired", "has expired: renew the broker's"),
        ("certificate verify failed", "ssl.ca.location"),
        ("wrong version number", "check security.protocol"),
    ],
)
def test_what_helps_against_a_failed_handshake_is_said(text: str, fix: str) -> None:
    found = failure(SETTINGS, KafkaError(KafkaError._SSL, text))
    assert isinstance(found, LoginRefused) and found.retryable
    assert fix in found.fix and text in found.what


def test_a_login_that_is_refused_names_its_user_and_not_its_password() -> None:
    settings = Settings(bootstrap_servers="k:1", kafka={"sasl.username": "me", "sasl.password": "planted"})
    found = failure(settings, KafkaError(KafkaError._AUTHENTICATION))
    assert isinstance(found, LoginRefused) and "refuses the login of me: " in found.what
    assert "planted" not in str(found)


@pytest.mark.parametrize("code", FOR_NOW)
def test_a_broker_that_can_not_do_it_for_now_has_answered_and_is_waited_for(code: int) -> None:
    found = failure(SETTINGS, KafkaError(code))
    assert isinstance(found, Unavailable) and found.retryable
    assert found.what == f"Kafka refuses for now: {KafkaError(code).str()}"
    assert "BOOTSTRAP" not in found.fix
    # a driver waits on both of them and counts no try
    assert is_outage(found) and is_outage(KafkaException(KafkaError(code)))


@pytest.mark.parametrize("code", FOR_GOOD)
def test_what_a_broker_will_never_take_is_no_outage(code: int) -> None:
    found = failure(SETTINGS, KafkaError(code))
    assert type(found) is SwitchyardError
    assert found.what == f"Kafka refuses: {KafkaError(code).str()}"
    assert not is_outage(found) and not is_outage(KafkaException(KafkaError(code)))


@pytest.mark.parametrize(
    ("code", "acl"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "topic orders (Read, "),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "group readers (Read, "),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id writer (Write and Describe)"),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "the cluster (Describe, "),
    ],
)
def test_a_missing_acl_is_refused_by_name(code: int, acl: str) -> None:
    error = KafkaError(code)
    found = failure(SETTINGS, error, topic="orders", group="readers", transactional_id="writer")
    assert isinstance(found, Refused)
    assert found.what == f"Kafka refuses: {error.str()}"
    assert f"the ACL on {acl}" in found.fix
    assert not is_outage(found)
    # without the name, the message still says what kind it is; a consumer always has a group
    kind = acl.split()[0]
    alone = "the cluster" if kind == "the" else "group switchyard-unused" if kind == "group" else f"the {kind}"
    assert f"the ACL on {alone}" in failure(SETTINGS, error).fix


def test_an_error_of_the_client_s_own_is_not_laid_to_the_network_and_passes() -> None:
    found = failure(SETTINGS, KafkaError(KafkaError._UNKNOWN_PARTITION))
    assert isinstance(found, Unavailable) and found.what.startswith("the Kafka client fails: ")


def test_a_topic_that_may_not_be_seen_is_not_taken_for_missing() -> None:
    class Admin:
        def list_topics(self, name: str, timeout: float) -> Any:
            error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            return SimpleNamespace(topics={name: SimpleNamespace(error=error, partitions={})})

    with pytest.raises(Refused) as caught:
        partition_count(SETTINGS, "the-log", client=cast(AdminClient, Admin()))
    assert "the ACL on topic the-log" in caught.value.fix


class FailingProducer:
    """Fails at the start of each step with the same error."""

    def __init__(self, error: KafkaError) -> None:
        self.error = error
        self.tries = 0

    def list_topics(self, topic: str, timeout: float) -> None:
        """It is connected."""

    def init_transactions(self, timeout_s: float) -> None:
        self.tries += 1
        raise KafkaException(self.error)


def step_with(producer: FailingProducer, monkeypatch: pytest.MonkeyPatch) -> SwitchyardError:
    """What a step raises if the log's writer has this producer."""
    monkeypatch.setattr("pipelines.kafka.log.producer", lambda *_, **__: producer)
    writer = FencedWriter(SETTINGS, "the-log", "the-writer", attempts=3, sleep=lambda _: None)
    with pytest.raises(SwitchyardError) as caught:
        writer.append(lambda: [b"entry"])
    return caught.value


@pytest.mark.parametrize(
    ("code", "acl"),
    [
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id the-writer"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "topic the-log"),
    ],
)
def test_a_writer_without_the_acl_says_so_at_its_first_try(
    code: int, acl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what commit raises after a record was refused: the transaction must be aborted
    producer = FailingProducer(KafkaError(code, txn_requires_abort=True))
    said = step_with(producer, monkeypatch)
    assert isinstance(said, Refused) and f"the ACL on {acl}" in said.fix
    assert producer.tries == 1


def test_a_writer_calls_fenced_only_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = FailingProducer(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, txn_requires_abort=True))
    assert step_with(producer, monkeypatch).what.startswith("Kafka refuses: ")
    producer = FailingProducer(KafkaError(KafkaError.PRODUCER_FENCED))
    assert "fenced 3 times" in step_with(producer, monkeypatch).what
    assert producer.tries == 3


@pytest.mark.parametrize(
    ("kafka", "words"),
    [
        ({"security.protocol": "NOPE"}, 'invalid value for configuration property "security.protocol"'),
        ({"security.protocol": "ssl", "ssl.ca.location": "/nowhere/ca.pem"}, "ssl.ca.location names a file that doesn't exist: /nowhere/ca.pem"),
        ({"no.such.property": "1"}, "no.such.property"),
    ],
)  # fmt: skip
def test_settings_that_no_client_takes_are_bad_usage(kafka: dict[str, str], words: str) -> None:
    for make in (admin, consumer, producer):
        with pytest.raises(BadUsage) as error:
            make(SETTINGS.model_copy(update={"kafka": kafka}))
        assert words in error.value.what
        assert "SWITCHYARD_KAFKA" in error.value.fix


def test_where_a_protocol_is_set_nobody_answers_by_it_either() -> None:
    found = failure(SETTINGS.model_copy(update={"kafka": {"security.protocol": "ssl"}}), KafkaError(NOT_REACHED[0]))
    assert "whether it speaks ssl" in found.fix
