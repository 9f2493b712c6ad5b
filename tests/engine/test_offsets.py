"""What a new client does not know yet is asked for again, soon: it would ask by itself seconds later."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pipelines.errors import Unavailable
from pipelines.kafka.client import once_led
from pipelines.kafka.offsets import end_of
from pipelines.settings import Settings

SETTINGS = Settings(request_timeout_s=2.0)


class Admin:
    """Answers from the second question on, as one that was asked before it was connected."""

    def __init__(self, silent: int) -> None:
        self.silent = silent
        self.asked: list[str] = []

    def list_offsets(self, wanted: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Future[Any]]:
        self.asked.append("offsets")
        futures: dict[TopicPartition, Future[Any]] = {p: Future() for p in wanted}
        if self.asked.count("offsets") > self.silent:
            for future in futures.values():
                future.set_result(SimpleNamespace(offset=7))
        return futures

    def list_topics(self, topic: str, timeout: float) -> None:
        self.asked.append("leaders")
        if self.silent > 9:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_a_client_that_waits_for_the_leaders_is_asked_again() -> None:
    admin = Admin(silent=1)
    began = time.monotonic()
    assert end_of(SETTINGS, "words", 2, client=admin) == {0: 7, 1: 7}  # type: ignore[arg-type]
    assert time.monotonic() - began < 1.0
    assert admin.asked == ["offsets", "leaders", "offsets"]


def test_a_broker_that_is_gone_is_told_of() -> None:
    with pytest.raises(Unavailable):
        end_of(SETTINGS, "words", 1, client=Admin(silent=99))  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT])
def test_a_question_gets_more_time_each_time(code: int) -> None:
    given: list[float] = []

    def ask(patience_s: float) -> str:
        given.append(patience_s)
        if len(given) < 4:
            raise KafkaException(KafkaError(code))
        return "answer"

    assert once_led(ask, 10) == "answer"
    assert given[1:] == pytest.approx([2 * given[0], 4 * given[0], 8 * given[0]])


def test_a_question_is_asked_no_longer_than_it_may_take() -> None:
    given: list[float] = []

    def ask(patience_s: float) -> str:
        given.append(patience_s)
        time.sleep(patience_s)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    began = time.monotonic()
    with pytest.raises(KafkaException):
        once_led(ask, 0.5)
    assert sum(given) <= 0.6 and time.monotonic() - began < 5


def test_what_time_does_not_mend_is_raised_at_once() -> None:
    given: list[float] = []

    def ask(patience_s: float) -> str:
        given.append(patience_s)
        raise KafkaException(KafkaError(KafkaError._AUTHENTICATION))

    with pytest.raises(KafkaException):
        once_led(ask, 5)
    assert len(given) == 1
