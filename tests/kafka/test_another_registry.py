"""A recreated registry: a process that knows the old one reports this, and reads nothing of the new one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import TopicPartition

from pipelines.follow import LiveConsumer
from pipelines.kafka import snapshots
from pipelines.kafka.client import admin
from pipelines.kafka.registry import Registry
from pipelines.kafka.snapshots import Folding
from pipelines.kafka.topics import APPEND_ONLY, delete_topics, ensure_topic
from pipelines.model.entries import Entry, FollowerRegistered, encode
from pipelines.model.names import REGISTRY_TOPIC, SNAPSHOTS_TOPIC
from pipelines.model.parts import AnotherRegistry, CutRegistry
from pipelines.settings import Settings
from tests.follow.cluster import Cluster

ANOTHER = r"was deleted and recreated .* since this process read it[^~]*restart this process"


def entry(number: int) -> FollowerRegistered:
    return FollowerRegistered(alias="a", group=f"g-{number}")


def values(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, encode(entry(number))) for number in numbers]


@pytest.mark.parametrize("records", [values(0), values(5), values(6, 7, 1)])
def test_a_record_before_the_last_one_is_of_another_log(records: list[tuple[int, bytes]]) -> None:
    folding = Folding()
    assert folding.take(values(0, 1, 2, 5))
    before = folding.state
    with pytest.raises(AnotherRegistry):
        folding.take(records)
    assert folding.state is before


# -- on a broker


@pytest.fixture
def registry(broker: Settings, now: list[float]) -> Iterator[Registry]:
    with Registry(broker, clock=lambda: now[0]) as found:
        found.step(lambda _: [entry(0)])
        found.step(lambda _: [entry(1)])
        yield found
    delete_topics(broker, [REGISTRY_TOPIC, SNAPSHOTS_TOPIC])


@pytest.fixture
def now() -> list[float]:
    return [0.0]


def made_again(settings: Settings, entries: int) -> None:
    delete_topics(settings, [REGISTRY_TOPIC])
    ensure_topic(settings, REGISTRY_TOPIC, 1, APPEND_ONLY)
    with Registry(settings) as new:
        for number in range(entries):
            new.step(lambda _, number=number: [entry(100 + number)])  # type: ignore[misc]


@pytest.mark.broker
@pytest.mark.parametrize("entries", [0, 1, 6])
def test_a_reader_reports_a_recreated_registry_and_takes_nothing_from_it(
    registry: Registry, broker: Settings, now: list[float], entries: int
) -> None:
    made_again(broker, entries)
    now[0] += 5.1
    before = registry.known
    for _ in range(2):
        with pytest.raises(AnotherRegistry, match=ANOTHER):
            registry.state()
    assert registry.known is before


@pytest.mark.broker
@pytest.mark.parametrize("entries", [0, 1])
def test_an_end_that_went_back_is_looked_into_at_once(registry: Registry, broker: Settings, entries: int) -> None:
    made_again(broker, entries)
    with pytest.raises(AnotherRegistry, match=ANOTHER):
        registry.state()


@pytest.mark.broker
def test_a_registry_without_its_first_entries_is_refused(
    registry: Registry, broker: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "EVERY", 3)
    for number in range(2, 8):
        registry.step(lambda _, number=number: [entry(number)])  # type: ignore[misc]
    before = registry.state(snapshots=False)
    cut = TopicPartition(REGISTRY_TOPIC, 0, 5)
    client = admin(broker)
    client.delete_records([cut])[cut].result(timeout=10)
    # whoever has read it all goes on
    registry.step(lambda _: [entry(8)])
    with pytest.raises(CutRegistry, match="starts at offset 5: its first entries were deleted"):
        Registry(broker)
    # a snapshot has what is gone
    registry.state()
    with Registry(broker) as another:
        assert another.state() == registry.known != before


@pytest.mark.broker
@pytest.mark.parametrize("entries", [0, 6])
def test_nothing_is_written_to_a_recreated_registry(registry: Registry, broker: Settings, entries: int) -> None:
    made_again(broker, entries)
    decided: list[object] = []

    def decide(state: object) -> list[Entry]:
        decided.append(state)
        return [entry(2)]

    with pytest.raises(AnotherRegistry, match=ANOTHER):
        registry.step(decide)
    assert decided == []
    with Registry(broker) as new:
        assert new.state().followers.get("a", ()) == tuple(f"g-{100 + n}" for n in range(entries))


@pytest.mark.broker
def test_it_is_asked_for_its_id_now_and_then_only(
    registry: Registry, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    ask = Registry._id_now

    def counted(registry: Registry) -> str | None:
        asked.append(registry)
        return ask(registry)

    monkeypatch.setattr(Registry, "_id_now", counted)
    for _ in range(20):
        registry.state()
        registry.poll(0)
    assert asked == []
    now[0] += 5.1
    for _ in range(20):
        registry.state()
    assert len(asked) == 1


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.parametrize("entries", [0, 40])
def test_a_follower_reports_a_recreated_registry(broker: Settings, entries: int) -> None:
    cluster = Cluster(broker)
    v1 = cluster.first()
    v1.batch([(0, "k", "1")])
    with LiveConsumer(cluster.alias, group=f"{cluster.alias}-g", settings=broker) as follower:
        record = follower.poll(10)
        assert record is not None and record.value == b"1"
        made_again(broker, entries)
        deadline = time.monotonic() + 20
        with pytest.raises(AnotherRegistry, match=ANOTHER):
            while time.monotonic() < deadline:
                assert follower.poll(0.2) is None
    cluster.close()
    delete_topics(broker, [REGISTRY_TOPIC, SNAPSHOTS_TOPIC])
