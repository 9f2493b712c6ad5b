"""The broker's clock is what two hosts have in common, and a host tells it without a clock that is right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from pipelines.errors import Refused, Unavailable
from pipelines.kafka import clock as module
from pipelines.kafka.clock import BrokerClock
from pipelines.kafka.topics import APPEND_ONLY, HEARTBEATS, delete_topics, ensure_topic
from pipelines.model.names import HEARTBEATS_TOPIC
from pipelines.settings import Settings

BROKER_MS = 1_000_000_000
# an hour ahead of the broker
OWN_MS = BROKER_MS + 3_600_000


class World:
    """A broker and a host. `fails`: what the broker answers; None: its time. `took_s`: how long an answer takes."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.took_s = 0.0
        self.fails: int | None = None
        self.tells = True
        self.set_back_ms = 0
        self.asked: list[bytes] = []
        self.clock = BrokerClock(
            Settings(bootstrap_servers="127.0.0.1:1"),
            append=self.append, elapsed=lambda: 7_000 + self.passed_s, own=lambda: OWN_MS,
        )  # fmt: skip

    def append(self, key: bytes) -> int | None:
        self.asked.append(key)
        if self.fails is not None:
            raise KafkaException(KafkaError(self.fails))
        now_ms = self.broker_ms
        self.passed_s += self.took_s
        return now_ms if self.tells else None

    @property
    def broker_ms(self) -> int:
        return BROKER_MS + int(self.passed_s * 1000) - self.set_back_ms


def test_it_is_the_broker_s_time_whatever_the_host_s_is() -> None:
    world = World()
    for _ in range(100):
        assert world.clock.now_ms() == world.broker_ms
        world.passed_s += 1
    # once in five seconds
    assert len(world.asked) == 20


def test_it_is_never_ahead_of_the_broker_however_long_the_answer_takes() -> None:
    world = World()
    world.took_s = 3
    for _ in range(20):
        assert world.broker_ms - 3_000 <= world.clock.now_ms() <= world.broker_ms
        world.passed_s += 1


def test_a_broker_s_clock_that_is_set_back_is_followed_within_seconds() -> None:
    world = World()
    world.clock.now_ms()
    world.set_back_ms = 60_000
    world.passed_s += 5
    assert world.clock.now_ms() == world.broker_ms


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError.NOT_LEADER_FOR_PARTITION])
def test_without_an_answer_an_earlier_one_counts_and_never_the_host_s_clock(code: int) -> None:
    world = World()
    world.fails = code
    with pytest.raises(Unavailable):
        world.clock.now_ms()
    world.fails = None
    world.clock.now_ms()
    world.fails, world.passed_s = code, 60
    assert world.clock.now_ms() == world.broker_ms
    with pytest.raises(Unavailable):
        world.clock.say(b"a sign")


def no_topic(world: World) -> None:
    world.fails = KafkaError.UNKNOWN_TOPIC_OR_PART


def no_right(world: World) -> None:
    world.fails = KafkaError.TOPIC_AUTHORIZATION_FAILED


def no_time(world: World) -> None:
    world.tells = False


@pytest.mark.parametrize("why", [no_topic, no_right, no_time])
def test_where_the_broker_tells_no_time_it_is_the_host_s(why: Callable[[World], None]) -> None:
    world = World()
    why(world)
    assert [world.clock.now_ms() for _ in range(3)] == [OWN_MS] * 3
    assert len(world.asked) == 1 and not world.clock.is_brokers
    world.fails, world.tells, world.passed_s = None, True, 5
    assert world.clock.now_ms() == world.broker_ms


@pytest.mark.parametrize("why", [no_topic, no_right])
def test_an_earlier_answer_counts_where_the_broker_tells_no_time_any_more(why: Callable[[World], None]) -> None:
    world = World()
    world.clock.now_ms()
    why(world)
    world.passed_s += 60
    assert world.clock.now_ms() == world.broker_ms
    assert world.clock.is_brokers


def test_a_broker_that_does_not_answer_is_not_asked_each_time() -> None:
    world = World()
    world.clock.now_ms()
    world.fails, world.passed_s = KafkaError._TIMED_OUT, world.passed_s + 5
    for _ in range(10):
        world.clock.now_ms()
    assert len(world.asked) == 2
    world.passed_s += 5
    world.clock.now_ms()
    assert len(world.asked) == 3


def test_whoever_may_not_give_signs_of_life_is_refused() -> None:
    world = World()
    no_right(world)
    with pytest.raises(Refused, match="Kafka refuses") as refused:
        world.clock.say(b"a sign")
    assert "`switchyard acls`" in refused.value.fix and HEARTBEATS_TOPIC in refused.value.fix


def test_a_sign_answers_what_time_it_is() -> None:
    world = World()
    for _ in range(10):
        world.clock.say(b"a sign")
        world.passed_s += 1
        assert world.clock.now_ms() == world.broker_ms
    assert set(world.asked) == {b"a sign"}


@pytest.mark.broker
def test_a_broker_tells_its_time_and_one_that_stamps_nothing_does_not(broker: Settings) -> None:
    delete_topics(broker, [HEARTBEATS_TOPIC])
    clock = BrokerClock(broker, own=lambda: 5)
    # asked again at once: each answer is used for seconds
    assert clock.now_ms() == 5 and BrokerClock(broker, own=lambda: 6).now_ms() == 6
    ensure_topic(broker, HEARTBEATS_TOPIC, 1, APPEND_ONLY)
    assert BrokerClock(broker, own=lambda: 7).now_ms() == 7
    delete_topics(broker, [HEARTBEATS_TOPIC])
    ensure_topic(broker, HEARTBEATS_TOPIC, 1, HEARTBEATS)
    clock = BrokerClock(broker, own=lambda: 8)
    before = module.now_ms()
    assert before <= clock.now_ms() <= module.now_ms()
    clock.say(b"a sign")
    assert before <= clock.now_ms() <= module.now_ms()
