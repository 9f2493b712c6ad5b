"""A follower commits while the group's coordinator moves to another broker, and says so during an outage."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pipelines.errors import Unavailable
from pipelines.follow import data
from pipelines.follow.data import DataReader
from pipelines.kafka.client import UNCOORDINATED
from pipelines.settings import Settings

AT = [TopicPartition("words.v1.g1", 0, 7)]


class Client:
    """A consumer whose first commits fail with the codes of `failures`."""

    def __init__(self, failures: list[int]) -> None:
        self.failures, self.committed = failures, list[TopicPartition]()

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert not asynchronous
        if self.failures:
            raise KafkaException(KafkaError(self.failures.pop(0)))
        self.committed += offsets


def reader(monkeypatch: pytest.MonkeyPatch, client: Client, timeout_s: float = 5.0) -> DataReader:
    monkeypatch.setattr(data, "consumer", lambda *_, **__: client)
    return DataReader(Settings(request_timeout_s=timeout_s), "billing")


@pytest.mark.parametrize("code", UNCOORDINATED)
def test_a_commit_waits_for_the_next_coordinator(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    client = Client([code] * 3)
    reader(monkeypatch, client).commit(AT)
    assert client.committed == AT


@pytest.mark.parametrize(("code", "timeout_s"), [(KafkaError._TRANSPORT, 5.0), (KafkaError.NOT_COORDINATOR, 0.01)])
def test_it_does_not_wait_out_an_outage(monkeypatch: pytest.MonkeyPatch, code: int, timeout_s: float) -> None:
    client: Any = Client([code] * 99)
    with pytest.raises(Unavailable):
        reader(monkeypatch, client, timeout_s).commit(AT)
    assert client.committed == []
