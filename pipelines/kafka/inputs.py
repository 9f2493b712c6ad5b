"""What Kafka says about topics: first offsets, what matters of their settings, their replicas, and their ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from pipelines.kafka.client import answer_of, by_controller, own
from pipelines.kafka.failures import failure, forbidden
from pipelines.kafka.offsets import first_of
from pipelines.kafka.topics import AHEAD
from pipelines.model.missing import NO_LIMIT_MS, InputNow, Replication
from pipelines.settings import Settings

_LIMITS = ("retention.ms", "retention.bytes")

Ids = Callable[[Settings, Iterable[str]], Mapping[str, str]]


def inputs_now(settings: Settings, topics: Iterable[str], *, client: AdminClient | None = None) -> dict[str, InputNow]:
    """Topic -> what Kafka says about it. Missing topics are left out. Raises Unavailable without a broker."""
    client = own(settings, client)
    described = _described(settings, topics, client)
    first = first_of(settings, {topic: len(each.partitions) for topic, each in described.items()}, client=client)
    configs = _configs(settings, described, client)
    return {
        topic: InputNow(
            first=first.get(topic, {}),
            id=str(each.topic_id),
            replicas=_replicas(each),
            **_known(configs.get(topic)),
        )
        for topic, each in described.items()
    }


def topic_ids(settings: Settings, topics: Iterable[str], *, client: AdminClient | None = None) -> dict[str, str]:
    """Topic -> its id. Missing topics are left out. One request. Raises as `inputs_now` does."""
    return {t: str(each.topic_id) for t, each in _described(settings, topics, own(settings, client)).items()}


def replication(
    settings: Settings, topics: Iterable[str], *, client: AdminClient | None = None
) -> dict[str, Replication]:
    """Topic -> how the cluster keeps it. Missing topics are left out. Raises Unavailable without a broker."""
    client = own(settings, client)
    hidden: set[str] = set()
    described = _described(settings, topics, client, hidden)
    configs = _configs(settings, described, client)
    seen = {
        topic: Replication(
            replicas=_replicas(each), **({} if (known := configs.get(topic)) is None else _safety(known))
        )
        for topic, each in described.items()
    }
    return {**seen, **dict.fromkeys(hidden, Replication())}


def _described(
    settings: Settings, topics: Iterable[str], client: AdminClient, hidden: set[str] | None = None
) -> dict[str, Any]:
    """Topic -> its TopicDescription. `hidden` gets the topics that this user may not describe; without it, one is an error."""
    names = sorted(set(topics))
    found: dict[str, Any] = {}
    if not names:
        return found
    deadline = time.monotonic() + settings.request_timeout_s
    asked = by_controller(
        client,
        lambda timeout_s: client.describe_topics(TopicCollection(names), request_timeout=timeout_s),
        settings.request_timeout_s,
    )
    for name, future in asked.items():
        try:
            found[name] = answer_of(future, deadline)
        except KafkaException as error:
            if hidden is not None and forbidden(error.args[0]):
                hidden.add(name)
            elif error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise failure(settings, error.args[0], topic=name) from error
    return found


def _known(config: Mapping[str, str] | None) -> dict[str, Any]:
    """What the settings of a topic say about its records, as fields of InputNow. None: this user may not read them."""
    if config is None:
        return {"compacted": None, "ahead_ms": None}
    stamped = config["message.timestamp.type"] == "LogAppendTime"
    # brokers before 3.6 have no limit of their own for the future
    limit_ms = int(config.get(AHEAD, NO_LIMIT_MS))
    policies = config["cleanup.policy"].split(",")
    limits = {name: int(config[name]) for name in _LIMITS} if "delete" in policies else {}
    return {
        "compacted": "compact" in policies,
        "ahead_ms": 0 if stamped else limit_ms,
        # -1: no limit
        "limits": {name: limit for name, limit in limits.items() if limit >= 0},
        **_safety(config),
    }


def _safety(config: Mapping[str, str]) -> dict[str, Any]:
    """What the settings of a topic say about records that may be lost with a broker, as fields of InputNow."""
    return {
        "in_sync": int(config["min.insync.replicas"]),
        "unclean": config["unclean.leader.election.enable"] == "true",
    }


def _replicas(described: Any) -> int:
    return min((len(partition.replicas) for partition in described.partitions), default=0)


def _configs(settings: Settings, topics: Iterable[str], client: AdminClient) -> dict[str, dict[str, str]]:
    """Topic -> its settings by name. A topic whose settings this user may not read is left out."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    found: dict[str, dict[str, str]] = {}
    if not resources:
        return found
    deadline = time.monotonic() + settings.request_timeout_s
    asked = by_controller(
        client,
        lambda timeout_s: client.describe_configs(resources, request_timeout=timeout_s),
        settings.request_timeout_s,
    )
    for resource, future in asked.items():
        try:
            entries = answer_of(future, deadline)
            found[str(resource.name)] = {name: str(entry.value) for name, entry in entries.items()}
        except KafkaException as error:
            gone = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            if not gone and not forbidden(error.args[0]):
                raise failure(settings, error.args[0], topic=resource.name) from error
    return found
