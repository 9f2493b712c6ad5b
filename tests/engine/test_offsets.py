"""What a new client does not know yet is asked for again, soon: it would ask by itself seconds later."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pipelines.errors import Unavailable
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
