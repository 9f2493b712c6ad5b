"""A process that asks repeatedly gets the same answer as one that asks for the first time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import Unavailable
from pipelines.kafka import heartbeats as heartbeats_module
from pipelines.kafka.client import MOVED
from pipelines.kafka.heartbeats import Heartbeats
from pipelines.kafka.kept import Kept
from pipelines.model.progress import Heartbeat
from pipelines.settings import Settings

SETTINGS = Settings(bootstrap_servers="127.0.0.1:1", request_timeout_s=0.5)


@dataclass(frozen=True)
class Message:
    """A record, or the end of the partition."""

    at: int
    time_ms: int = 0
    content: bytes | None = None
    fault: int | None = None

    def error(self) -> KafkaError | None:
        return None if self.fault is None else KafkaError(self.fault)

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, self.time_ms

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return self.content


@dataclass
class Topic:
    """The topic, and a consumer of it. `fails`: errors of the next reads; `gone`: it was deleted."""

    records: list[tuple[int, bytes | None]] = field(default_factory=list)
    first: int = 0
    fails: list[int] = field(default_factory=list)
    at: int = 0
    read: int = 0

    def get_watermark_offsets(self, _: TopicPartition, timeout: float) -> tuple[int, int]:
        self._fail()
        return self.first, len(self.records)

    def offsets_for_times(self, times: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._fail()
        later = (n for n, (time_ms, _) in enumerate(self.records) if n >= self.first and time_ms >= times[0].offset)
        return [TopicPartition(times[0].topic, 0, next(later, -1))]

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.at = partitions[0].offset

    def poll(self, timeout: float) -> Message:
        if self.fails and self.fails[0] == KafkaError._TRANSPORT:
            self._fail()
        if self.at == len(self.records):
            return Message(self.at, fault=KafkaError._PARTITION_EOF)
        self.at, self.read = self.at + 1, self.read + 1
        return Message(self.at - 1, *self.records[self.at - 1])

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        return []

    def _fail(self) -> None:
        if self.fails:
            raise KafkaException(KafkaError(self.fails.pop(0)))

    # of `Kept`

    has_one = True

    @contextmanager
    def borrowed(self) -> Iterator[Topic]:
        yield self

    def say(self, time_ms: int, release: str = "a", token: int = 1) -> None:
        beat = Heartbeat(
            release=f"{release}.v1",
            generation=1,
            token=token,
            host="h",
            pid=1,
            at_ms=len(self.records),
            state="running",
        )
        self.records.append((time_ms, beat.model_dump_json().encode()))

    def heard(self, from_ms: int) -> dict[str, tuple[int, int]]:
        """Release -> token and number of the record that counts: in one pass, from the first record since a time."""
        found: dict[str, tuple[int, int]] = {}
        begun = False
        for time_ms, value in self.records[self.first :]:
            begun = begun or time_ms >= from_ms
            if begun and value is not None and value.startswith(b"{"):
                beat = Heartbeat.model_validate_json(value)
                if beat.release not in found or beat.token >= found[beat.release][0]:
                    found[beat.release] = (beat.token, beat.at_ms)
        return found


def asked(heartbeats: Heartbeats, window_ms: int, now_ms: int) -> dict[str, tuple[int, int]]:
    found = heartbeats.latest(window_s=window_ms / 1000, now_ms=now_ms)
    return {release: (beat.token, beat.at_ms) for release, beat in found.items()}


def of(topic: Topic) -> Heartbeats:
    return Heartbeats(SETTINGS, cast(Kept, topic))


SAYS = st.tuples(st.just("says"), st.integers(0, 60), st.sampled_from("ab"), st.integers(1, 3))
SAYS_NOTHING = st.tuples(st.just("nothing"), st.integers(0, 60), st.sampled_from([None, b"not a heartbeat"]))
ASKS = st.tuples(st.just("asks"), st.integers(1, 40), st.integers(1, 80))
RECREATED = st.just(("recreated",))


@given(st.lists(st.one_of(SAYS, SAYS, SAYS_NOTHING, ASKS, ASKS, RECREATED), max_size=40))
def test_the_answer_is_that_of_one_who_asks_for_the_first_time(steps: list[Any]) -> None:
    topic = Topic()
    heartbeats = of(topic)
    for step in steps:
        match step:
            case "says", time_ms, release, token:
                topic.say(time_ms, release, token)
            case "nothing", time_ms, value:
                topic.records.append((time_ms, value))
            case "asks", window_ms, now_ms:
                assert asked(heartbeats, window_ms, now_ms) == topic.heard(now_ms - window_ms)
            case _:
                topic.records.clear()
                assert asked(heartbeats, 40, 40) == {}


def test_a_call_reads_what_came_since_and_after_a_long_pause_only_what_counts() -> None:
    topic = Topic()
    heartbeats = of(topic)
    for time_ms in range(1_000, 1_050):
        topic.say(time_ms)
    asked(heartbeats, 100, 1_050)
    assert topic.read == 50
    topic.say(1_060)
    assert asked(heartbeats, 100, 1_060) == {"a.v1": (1, 50)}
    assert topic.read == 51
    for time_ms in range(1_100, 1_500):
        topic.say(time_ms)
    assert asked(heartbeats, 10, 1_500) == {"a.v1": (1, 450)}
    assert topic.read == 61


@pytest.mark.parametrize("code", MOVED)
def test_a_leader_that_moves_is_waited_for(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # an election takes longer than a new client needs to learn of a topic
    monkeypatch.setattr(heartbeats_module, "LED_S", 0.1)
    topic = Topic()
    heartbeats = of(topic)
    topic.say(10)
    for now_ms in (20, 30):
        topic.fails = [code] * 8
        assert asked(heartbeats, 20, now_ms) == {"a.v1": (1, 0)}
        assert topic.fails == []


def test_a_shorter_window_and_a_later_call_leave_out_what_was_heard_before() -> None:
    topic = Topic()
    heartbeats = of(topic)
    topic.say(10, "a", 2)
    topic.say(30, "a", 1)
    topic.say(30, "b")
    assert asked(heartbeats, 40, 40) == {"a.v1": (2, 0), "b.v1": (1, 2)}
    # where the newest driver is silent, an earlier one is heard
    assert asked(heartbeats, 20, 40) == {"a.v1": (1, 1), "b.v1": (1, 2)}
    assert asked(heartbeats, 40, 60) == {"a.v1": (1, 1), "b.v1": (1, 2)}
    assert asked(heartbeats, 40, 75) == {}


def test_records_that_retention_has_deleted_unread_are_passed_over() -> None:
    topic = Topic()
    heartbeats = of(topic)
    topic.say(10)
    asked(heartbeats, 100, 20)
    for time_ms in (30, 40, 50):
        topic.say(time_ms, "b")
    topic.first = 3
    assert asked(heartbeats, 100, 50) == {"b.v1": (1, 3)}


def test_a_topic_that_is_empty_at_first_is_heard_later() -> None:
    topic = Topic()
    heartbeats = of(topic)
    assert asked(heartbeats, 100, 20) == {}
    topic.say(30)
    assert asked(heartbeats, 100, 40) == {"a.v1": (1, 0)}


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError.NOT_LEADER_FOR_PARTITION])
def test_a_read_that_fails_in_the_middle_loses_nothing(code: int) -> None:
    topic = Topic()
    heartbeats = of(topic)
    topic.say(10, "a")
    asked(heartbeats, 100, 20)
    topic.say(30, "b")
    topic.fails = [code]
    assert asked(heartbeats, 100, 40) == {"a.v1": (1, 0), "b.v1": (1, 1)}


def test_a_broker_that_does_not_answer_is_reported() -> None:
    topic = Topic()
    heartbeats = of(topic)
    topic.say(10)
    topic.fails = [KafkaError._TRANSPORT] * 2
    with pytest.raises(Unavailable):
        asked(heartbeats, 100, 20)
    assert asked(heartbeats, 100, 20) == {"a.v1": (1, 0)}
