"""What Kafka says about the topics of a release: first offsets, whether they are compacted, and their ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from pipelines.kafka.client import answer_of, failure, forbidden, own
from pipelines.kafka.offsets import first_of
from pipelines.model.missing import InputNow
from pipelines.settings import Settings

Inputs = Callable[[Settings, Iterable[str]], Mapping[str, InputNow]]
Ids = Callable[[Settings, Iterable[str]], Mapping[str, str]]


def inputs_now(settings: Settings, topics: Iterable[str], *, client: AdminClient | None = None) -> dict[str, InputNow]:
    """Topic -> what Kafka says about it. Missing topics are left out. Raises Unavailable without a broker."""
    client = own(settings, client)
    described = _described(settings, topics, client)
    first = first_of(settings, {topic: count for topic, (_, count) in described.items()}, client=client)
    compacted = _compacted(settings, described, client)
    return {
        topic: InputNow(first=first.get(topic, {}), compacted=compacted.get(topic), id=found)
        for topic, (found, _) in described.items()
    }


def topic_ids(settings: Settings, topics: Iterable[str], *, client: AdminClient | None = None) -> dict[str, str]:
    """Topic -> its id. Missing topics are left out. One request. Raises as `inputs_now` does."""
    return {t: found for t, (found, _) in _described(settings, topics, own(settings, client)).items()}


def _described(settings: Settings, topics: Iterable[str], client: AdminClient) -> dict[str, tuple[str, int]]:
    """Topic -> its id and number of partitions."""
    names = sorted(set(topics))
    found: dict[str, tuple[str, int]] = {}
    if not names:
        return found
    deadline = time.monotonic() + settings.request_timeout_s
    asked = client.describe_topics(TopicCollection(names), request_timeout=settings.request_timeout_s)
    for name, future in asked.items():
        try:
            answer: Any = answer_of(future, deadline)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise failure(settings, error.args[0], topic=name) from error
        else:
            found[name] = str(answer.topic_id), len(answer.partitions)
    return found


def _compacted(settings: Settings, topics: Iterable[str], client: AdminClient) -> dict[str, bool]:
    """Topic -> whether it is compacted. A topic whose settings this user may not read is left out."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    found: dict[str, bool] = {}
    if not resources:
        return found
    deadline = time.monotonic() + settings.request_timeout_s
    asked = client.describe_configs(resources, request_timeout=settings.request_timeout_s)
    for resource, future in asked.items():
        try:
            policy = answer_of(future, deadline)["cleanup.policy"].value
            found[str(resource.name)] = "compact" in str(policy).split(",")
        except KafkaException as error:
            gone = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            if not gone and not forbidden(error.args[0]):
                raise failure(settings, error.args[0], topic=resource.name) from error
    return found
