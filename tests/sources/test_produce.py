"""Input through a real broker: what arrives is what was made, and a second run goes on with the clock of the first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import pytest

from demo.ledger.reader import read
from orchestration.sources import Faults, Options, last_timestamp_ms, produce, source_for
from orchestration.sources.run import SLICE_S
from pipelines.errors import Refused, SwitchyardError, Unavailable
from pipelines.kafka.topics import INPUT, topic_names
from pipelines.settings import Settings, get_settings

pytestmark = pytest.mark.broker


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        self.now_s += for_s


@pytest.fixture
def time() -> dict[str, Any]:
    """The clock and the sleep of `produce`."""
    clock = Clock()
    return {"clock": clock, "sleep": clock.sleep}


def test_what_arrives_is_what_was_made(broker: Settings, fresh_topic: Callable[..., str]) -> None:
    topic = fresh_topic(4, **{name.replace(".", "_"): value for name, value in INPUT.items()})
    source = source_for("stock-stats", Options())
    produced = produce(broker, source, topic=topic, history=30_000)
    made = list(islice(chain.from_iterable(source.blocks(None)), 30_000))
    got = list(read(broker.bootstrap, topic))
    assert sorted((r.key, r.value or b"", r.time_ms) for r in got) == sorted((k, v or b"", t) for k, v, t in made)
    assert produced.records == 30_000
    assert (produced.first_ms, produced.last_ms) == (min(t for _, _, t in made), max(t for _, _, t in made))
    # a key has one partition, the one that Java's clients choose
    assert {r.partition for r in got if r.key == b"HOOLI"} == {0}
    assert {r.partition for r in got if r.key == b"IBM"} == {3}


def test_live_input_continues_the_clock(
    broker: Settings, fresh_topic: Callable[..., str], time: dict[str, Any]
) -> None:
    topic = fresh_topic(4, **{name.replace(".", "_"): value for name, value in INPUT.items()})
    source = source_for("stock-stats", Options(faults=Faults.none(), per_second=100))
    history = produce(broker, source, topic=topic, history=1_000)
    assert last_timestamp_ms(broker, topic, 4) == history.last_ms
    live = produce(broker, source, topic=topic, rate=1_000, records=300, **time)
    assert history.last_ms is not None and live.first_ms is not None
    assert 0 < live.first_ms - history.last_ms <= 10
    assert live.records == 300
    # as many as the rate allows, and no later than the next slice
    assert 0.3 <= live.duration_s <= 0.3 + 2 * SLICE_S


def test_duration_ends_it(broker: Settings, fresh_topic: Callable[..., str], time: dict[str, Any]) -> None:
    topic = fresh_topic(4, retention_ms="-1")
    live = produce(broker, source_for("word-count", Options()), topic=topic, rate=200, duration_s=0.5, **time)
    assert live.records == 100


def test_it_ends_when_told_to(broker: Settings, fresh_topic: Callable[..., str], time: dict[str, Any]) -> None:
    topic = fresh_topic(4, retention_ms="-1")
    answers = iter([False] * 20 + [True] * 1_000)
    live = produce(
        broker, source_for("large-orders", Options()), topic=topic, rate=1_000, stopped=lambda: next(answers), **time
    )
    assert len(list(read(broker.bootstrap, topic))) == live.records
    # of 20 slices at most
    assert 0 < live.records <= 20 * SLICE_S * 1_000


def test_records_from_the_future_are_said_to_be_that(broker: Settings, fresh_topic: Callable[..., str]) -> None:
    topic = fresh_topic(4, **{name.replace(".", "_"): value for name, value in INPUT.items()})
    source = source_for("stock-stats", Options(density="sparse", tickers=("IBM",), per_day=1, faults=Faults.none()))
    with pytest.raises(SwitchyardError, match="which is in the future") as said:
        produce(broker, source, topic=topic, history=12_000)
    assert "--per-day" in (said.value.fix or "")


def test_a_topic_with_other_partitions_is_refused(broker: Settings, fresh_topic: Callable[..., str]) -> None:
    with pytest.raises(Refused, match="1 partitions, not 4"):
        produce(broker, source_for("stock-stats", Options()), topic=fresh_topic(1), history=10)


def test_the_topic_is_made_with_its_history_kept(broker: Settings, fresh_topic: Callable[..., str]) -> None:
    from confluent_kafka.admin import ConfigResource, ResourceType

    from pipelines.kafka.client import admin
    from pipelines.kafka.topics import delete_topics

    name = fresh_topic(1) + "-made"
    assert name not in topic_names(broker)
    produce(broker, source_for("stock-stats", Options()), topic=name, history=10)
    client = admin(broker)
    resource = ConfigResource(ResourceType.TOPIC, name)
    config = client.describe_configs([resource])[resource].result(timeout=10)
    assert config["retention.ms"].value == "-1"
    assert config["message.timestamp.type"].value == "CreateTime"
    assert config["message.timestamp.after.max.ms"].value == "10000"
    delete_topics(broker, [name])


def test_no_broker_is_a_clear_error() -> None:
    settings = get_settings().model_copy(update={"broker_port": 1, "request_timeout_s": 1.0})
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        produce(settings, source_for("stock-stats", Options()), history=10)
