"""A record that Kafka does not take is said, whenever the answer comes."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from orchestration.sources import run
from orchestration.sources.run import _Sender
from pipelines.errors import SwitchyardError
from pipelines.settings import Settings

REFUSED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


class Producer:
    """Refuses all that it is given, at the poll of that number, or when it is flushed; `left`: what it keeps."""

    def __init__(self, *, at: int | None, left: int = 0) -> None:
        self.at, self.left, self.polls = at, left, 0
        self.waiting: list[Any] = []

    def produce(self, *_: object, on_delivery: Any, **__: object) -> None:
        self.waiting.append(on_delivery)

    def list_topics(self, *_: object, **__: object) -> None:
        """It has a connection."""

    def poll(self, _: float) -> None:
        self.polls += 1
        if self.polls == self.at:
            self._answer()

    def flush(self, _: float) -> int:
        self._answer()
        return self.left

    def _answer(self) -> None:
        for answer in self.waiting if self.at is not None else ():
            answer(REFUSED, None)


def sender(monkeypatch: pytest.MonkeyPatch, producer: Producer) -> _Sender:
    monkeypatch.setattr(run, "producer", lambda *_, **__: producer)
    records = iter([("trades", (b"k", b"v", 1))] * 5_000)
    return _Sender(Settings(bootstrap_servers="127.0.0.1:1"), "trades", records, lambda: 0.0, lambda: False, None)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_while_more_is_sent(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    producer = Producer(at=at)
    with pytest.raises(SwitchyardError, match="the broker did not accept a record for trades"):
        sender(monkeypatch, producer).send(4_000)
    assert producer.polls == at


def test_when_all_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sending = sender(monkeypatch, Producer(at=99))
    sending.send(10)
    with pytest.raises(SwitchyardError, match="the broker did not accept a record for trades"):
        sending.close()


def test_what_is_not_answered_at_all_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    sending = sender(monkeypatch, Producer(at=None, left=7))
    sending.send(10)
    with pytest.raises(SwitchyardError, match="7 records for trades were not acknowledged"):
        sending.close()
