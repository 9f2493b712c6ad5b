"""A request about topics reaches a broker that lives, though the client waits for one that is dead."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from pipelines.kafka.client import answer_of, by_controller


class Client:
    """Counts how often it is asked for the brokers."""

    asked = 0

    def list_topics(self, timeout: float) -> None:
        self.asked += 1
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def failed(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def answered(answer: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(answer)
    return future


def ask(client: Client, answers: list[Future[Any]], timeout_s: float = 10.0) -> Future[Any]:
    found = by_controller(cast(AdminClient, client), lambda _: {"a": answers.pop(0)}, timeout_s)
    return found["a"]


def test_it_is_sent_again_after_the_client_has_asked_for_the_brokers() -> None:
    client = Client()
    answers = [failed(KafkaError._TIMED_OUT), failed(KafkaError._TIMED_OUT), answered("there")]
    assert ask(client, answers).result() == "there"
    assert client.asked == 2


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._TRANSPORT])
def test_another_error_is_an_answer(code: int) -> None:
    client = Client()
    assert ask(client, [failed(code)]).exception() is not None
    assert client.asked == 0


def test_without_an_answer_it_ends_in_time() -> None:
    client = Client()
    never: Future[Any] = Future()
    assert ask(client, [never], timeout_s=0.0) is never
    with pytest.raises(KafkaException) as found:
        answer_of(never, 0.0)
    assert found.value.args[0].code() == KafkaError._TIMED_OUT
