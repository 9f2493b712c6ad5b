"""When a follower asks whether its topics are still the same, and what it makes of the answer: without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from pipelines.errors import Unavailable
from pipelines.follow.same import SameTopics
from pipelines.kafka.client import admin
from pipelines.model.names import REGISTRY_TOPIC
from pipelines.model.parts import AnotherRegistry
from pipelines.settings import Settings

SETTINGS = Settings(bootstrap_servers="127.0.0.1:1")


class Kafka:
    """Topics by their ids, a clock, and how long each question would have waited."""

    def __init__(self) -> None:
        self.ids = {REGISTRY_TOPIC: "r", "result": "a"}
        self.now, self.away = 0.0, False
        self.asked: list[float] = []

    def topic_ids(self, settings: Settings, topics: Iterable[str]) -> Mapping[str, str]:
        assert all(topics)
        self.asked.append(settings.request_timeout_s)
        if self.away:
            raise Unavailable("no broker")
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def same(self) -> SameTopics:
        found = SameTopics(SETTINGS, admin(SETTINGS), ids=self.topic_ids, clock=lambda: self.now)
        self.asked.clear()
        return found


@pytest.mark.parametrize(("known", "another"), [("a", False), (None, False), ("b", True)])
def test_where_it_begins_the_registry_says_which_topic_it_is(known: str | None, another: bool) -> None:
    same = Kafka().same()
    same.begin("result", known)
    assert same.is_another is another


def test_it_asks_every_few_seconds_and_not_more_often() -> None:
    kafka = Kafka()
    same = kafka.same()
    same.look(sure=True)
    same.begin("result", None)
    assert kafka.asked == [10.0]
    kafka.ids["result"] = "b"
    for _ in range(100):
        same.look(sure=True)
    assert not same.is_another
    kafka.now += 5.0
    same.look(sure=False)
    assert same.is_another and kafka.asked == [10.0, 1.0]
    # in another one that is the right one
    same.begin("result", "b")
    assert not same.is_another


def test_before_it_reads_anything_the_registry_is_asked_for() -> None:
    kafka = Kafka()
    same = kafka.same()
    kafka.now += 5.0
    same.look(sure=True)
    kafka.ids[REGISTRY_TOPIC] = "s"
    kafka.now += 5.0
    for _ in range(2):
        with pytest.raises(AnotherRegistry):
            same.look(sure=False)
        kafka.now += 5.0


@pytest.mark.parametrize("gone", [REGISTRY_TOPIC, "result"])
def test_one_that_is_gone_is_not_another(gone: str) -> None:
    kafka = Kafka()
    same = kafka.same()
    same.begin("result", None)
    del kafka.ids[gone]
    kafka.now += 5.0
    same.look(sure=True)
    assert not same.is_another


def test_who_only_waits_is_not_held_up_by_an_outage_and_who_reads_has_to_know() -> None:
    kafka = Kafka()
    same = kafka.same()
    same.begin("result", None)
    kafka.asked.clear()
    kafka.away, kafka.now = True, 5.0
    for _ in range(10):
        same.look(sure=False)
    assert kafka.asked == [1.0]
    with pytest.raises(Unavailable):
        same.look(sure=True)
    kafka.away = False
    kafka.ids["result"] = "b"
    same.look(sure=True)
    assert same.is_another


def test_another_progress_topic_is_said_until_new_clients_read_it() -> None:
    kafka = Kafka()
    same = kafka.same()
    kafka.ids["progress"] = "p"
    same.begin("result", None, "progress")
    # deleted, and not recreated yet
    del kafka.ids["progress"]
    kafka.now += 5.0
    same.look(sure=False)
    assert not same.has_other_progress
    kafka.ids["progress"] = "q"
    for _ in range(2):
        kafka.now += 5.0
        same.look(sure=False)
        assert same.has_other_progress and not same.is_another
    same.forget_progress()
    kafka.now += 5.0
    same.look(sure=False)
    assert not same.has_other_progress


def test_progress_that_was_recreated_while_another_was_read_is_another() -> None:
    kafka = Kafka()
    same = kafka.same()
    kafka.ids |= {"progress": "p", "other": "o"}
    same.begin("result", None, "progress")
    same.begin("result", None, "other")
    assert not same.has_other_progress
    kafka.ids["progress"] = "q"
    same.begin("result", None, "progress")
    assert same.has_other_progress
    # a delta has none
    same.begin("result", None, None)
    assert not same.has_other_progress
