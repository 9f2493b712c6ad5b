"""What a new client does not know yet is asked for again soon; by itself the client would wait for seconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from pipelines.errors import Unavailable
from pipelines.kafka import offsets
from pipelines.kafka.client import MOVED, once_led
from pipelines.kafka.failures import TopicGone
from pipelines.kafka.offsets import end_of
from pipelines.settings import Settings

SETTINGS = Settings(request_timeout_s=2.0)


class Clock:
    """Replaces the module `time`: only waiting makes time pass."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        self.now_s += for_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(offsets, "time", made)
    return made


class Answer:
    """The future of an answer that a silent admin client never gives, or of an error."""

    def __init__(self, clock: Clock, silent: bool, error: int | None) -> None:
        self._clock, self._silent, self._error = clock, silent, error

    def result(self, timeout_s: float | None) -> SimpleNamespace:
        if not self._silent:
            return SimpleNamespace(offset=7)
        if self._error is not None:
            raise KafkaException(KafkaError(self._error))
        assert timeout_s is not None, "waits for ever"
        self._clock.sleep(timeout_s)
        raise TimeoutError


class Admin:
    """Does not answer the first `silent` questions, like a client that was asked before it was connected; with `error`,
    it answers them with that error.
    """

    def __init__(self, clock: Clock, silent: int, error: int | None = None) -> None:
        self.clock, self.silent, self.error = clock, silent, error
        self.asked: list[str] = []

    def list_offsets(self, wanted: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, Answer]:
        self.asked.append("offsets")
        return {p: Answer(self.clock, self.asked.count("offsets") <= self.silent, self.error) for p in wanted}

    def list_topics(self, topic: str, timeout: float) -> None:
        self.asked.append("leaders")
        if self.silent > 9 and self.error is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_a_client_that_waits_for_the_leaders_is_asked_again(clock: Clock) -> None:
    admin = Admin(clock, silent=1)
    assert end_of(SETTINGS, "words", 2, client=admin) == {0: 7, 1: 7}  # type: ignore[arg-type]
    assert admin.asked == ["offsets", "leaders", "offsets"]
    # the client itself would ask again only after 3 s
    assert clock.now_s < 0.5


@pytest.mark.parametrize("code", [*MOVED, KafkaError._TRANSPORT, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_the_next_leader_is_asked_once_it_can_answer(clock: Clock, code: int) -> None:
    admin = Admin(clock, silent=3, error=code)
    assert end_of(SETTINGS, "words", 1, client=admin) == {0: 7}  # type: ignore[arg-type]
    assert admin.asked.count("offsets") == 4


@pytest.mark.parametrize("code", MOVED)
def test_a_consumer_asks_the_next_leader_too(code: int) -> None:
    left = [KafkaException(KafkaError(code))] * 3

    def ask() -> int:
        if left:
            raise left.pop()
        return 7

    assert once_led(ask, 5.0) == 7


def test_a_broker_that_is_gone_is_told_of(clock: Clock) -> None:
    with pytest.raises(Unavailable):
        end_of(SETTINGS, "words", 1, client=Admin(clock, silent=99))  # type: ignore[arg-type]


def test_a_topic_that_stays_unknown_is_told_of_before_the_request_ends(clock: Clock) -> None:
    patient = SETTINGS.model_copy(update={"request_timeout_s": 60.0})
    with pytest.raises(TopicGone, match="there is no topic words"):
        end_of(patient, "words", 1, client=Admin(clock, silent=9_999, error=KafkaError.UNKNOWN_TOPIC_OR_PART))  # type: ignore[arg-type]
    assert 4.0 < clock.now_s < 6.0
