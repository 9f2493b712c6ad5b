"""Steps of two operators on one registry: the second one decides on what the first has written."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType

from pipelines.errors import Refused
from pipelines.kafka.log import LogReader
from pipelines.kafka.offsets import end_of
from pipelines.kafka.registry import Registry
from pipelines.model.entries import Entry, FollowerRegistered, HistoryAccepted, Opened
from pipelines.model.missing import Gap
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC
from pipelines.model.registry import RegistryState
from pipelines.settings import Settings
from tests.kafka.test_log import rest

pytestmark = pytest.mark.broker


def opening(name: str, release: str) -> Opened:
    return Opened(id=f"{name}-{release}", name=name, releases=(release,), deadline_ms=4_000_000_000_000)


def test_the_second_of_two_steps_sees_the_first_and_can_refuse(broker: Settings) -> None:
    release = f"sums-{uuid.uuid4().hex[:8]}.v1"
    decided: list[str] = []

    def begin(name: str, state: RegistryState) -> Sequence[Entry]:
        decided.append(name)
        other = state.blocking(release)
        if other is not None:
            raise Refused(f"{other.opened.name} is under way", fix="wait")
        return [opening(name, release)]

    with Registry(broker, actor="ann") as ann, Registry(broker, actor="bob") as bob:
        assert ann.state() == bob.state()

        def ann_while_bob_is_quicker(state: RegistryState) -> Sequence[Entry]:
            if decided == []:
                entries = begin("promote", state)
                bob.step(lambda s: begin("retire", s))
                return entries
            return begin("promote", state)

        with pytest.raises(Refused, match="retire is under way"):
            ann.step(ann_while_bob_is_quicker)
        assert decided == ["promote", "retire", "promote"]
        under_way = [o.opened for o in ann.state().operations.values() if release in o.opened.releases]
        assert [(o.name, o.actor) for o in under_way] == [("retire", "bob")]


def test_a_step_fills_in_who_when_and_why_and_returns_what_it_made(broker: Settings) -> None:
    alias = f"sums-{uuid.uuid4().hex[:8]}"
    with Registry(broker, actor="ann") as ann, Registry(broker, actor="bob") as bob:
        state = ann.step(lambda _: [FollowerRegistered(alias=alias, group="g")], op="op-1", reason="because")
        assert state.followers[alias] == ("g",)
        assert bob.state().followers[alias] == ("g",)
        entry = [*bob.history()][-1]
        assert isinstance(entry, Entry)
        assert (entry.actor, entry.op, entry.reason, entry.at_ms > 0) == ("ann", "op-1", "because", True)
        assert not bob.poll(0)


def test_a_step_of_nothing_writes_nothing(broker: Settings) -> None:
    with Registry(broker) as registry:
        # on a fresh broker the first entry creates the topic
        registry.step(lambda _: [FollowerRegistered(alias=f"sums-{uuid.uuid4().hex[:8]}", group="g")])
        end, before = end_of(broker, REGISTRY_TOPIC, 1, committed=False), registry.state()
        assert registry.step(lambda _: []) == before
        assert end_of(broker, REGISTRY_TOPIC, 1, committed=False) == end


def test_retention_deletes_no_entry_and_the_broker_says_when_a_driver_was_heard(broker: Settings) -> None:
    with Registry(broker) as registry:
        registry.ensure()
        client = registry.cluster.client
        asked = client.describe_configs(
            [ConfigResource(ResourceType.TOPIC, t) for t in (REGISTRY_TOPIC, HEARTBEATS_TOPIC)]
        )
        config = {r.name: {n: c.value for n, c in future.result(10).items()} for r, future in asked.items()}
    entries, beats = config[REGISTRY_TOPIC], config[HEARTBEATS_TOPIC]
    assert [entries[n] for n in ("cleanup.policy", "retention.ms", "retention.bytes")] == ["delete", "-1", "-1"]
    assert (beats["message.timestamp.type"], beats["retention.ms"]) == ("LogAppendTime", "3600000")


def test_version_0_1_passes_over_the_kinds_that_it_does_not_know(broker: Settings) -> None:
    gap = Gap(topic="lines", partition=0, start=0, end=5, why="deleted")
    entries = [HistoryAccepted(release="sums.v2", missing=(gap,)), FollowerRegistered(alias="sums", group="g")]
    with Registry(broker, actor="ann") as ann, Registry(broker, actor="bob") as bob:
        ann.step(lambda _: entries)
        assert [type(e) for e in [*bob.history()][-2:]] == [HistoryAccepted, FollowerRegistered]
    as_before = LogReader(broker, REGISTRY_TOPIC)
    kinds = [json.loads(value)["kind"] for value in rest(as_before)]
    as_before.close()
    assert kinds[-1] == "follower" and "history-accepted" not in kinds
