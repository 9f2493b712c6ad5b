"""Topics: created with explicit settings, described, deleted by exact name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from pipelines.errors import Refused
from pipelines.kafka.client import answer_of, know_controller, own
from pipelines.kafka.failures import failure
from pipelines.model.names import PROGRESS_SUFFIX, REGISTRY_TOPIC, split_release
from pipelines.settings import Settings

_POLL_S = 0.02
DAY_MS = 24 * 3600 * 1000
# longer than any operation; otherwise compaction deletes records that an operation still needs as of its cut
COMPACTION_LAG_MS = 7 * DAY_MS

# how far ahead of the broker's clock a record's time may be, in ms; brokers before 3.6 don't know it
AHEAD = "message.timestamp.after.max.ms"

APPEND_ONLY = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
# records carry event time: without explicit retention the broker would delete history minutes after it was written
INPUT = {**APPEND_ONLY, "message.timestamp.type": "CreateTime", AHEAD: "10000"}
RESULT_STREAM = {**APPEND_ONLY, "message.timestamp.type": "LogAppendTime"}
RESULT_TABLE = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": str(COMPACTION_LAG_MS),
    "delete.retention.ms": str(COMPACTION_LAG_MS),
    "message.timestamp.type": "LogAppendTime",
}
# a fixed set of keys is reused: the newest record stays forever, the others as long as an operation may need them
PROGRESS = {**RESULT_TABLE, "segment.ms": str(DAY_MS)}
# the newest snapshot of each version stays
SNAPSHOTS = {"cleanup.policy": "compact", "segment.ms": str(DAY_MS), "segment.bytes": str(16 * 1024 * 1024)}
# the broker's clock says when a driver was heard; a driver's own clock may be wrong
HEARTBEATS = {
    "cleanup.policy": "delete",
    "retention.ms": "3600000",
    "segment.ms": "600000",
    "message.timestamp.type": "LogAppendTime",
}


def in_sync(replication_factor: int) -> dict[str, str]:
    """How many replicas must have a record before it counts as written, as a topic's setting: more than half.

    Kafka's default is one. If that one dies before others have the record, it is lost, though a commit said that it is
    safe. With two replicas, more than half would be both, and each restart of a broker would stop all writing. So with fewer
    than three it is left to the cluster.
    """
    return {"min.insync.replicas": str(replication_factor // 2 + 1)} if replication_factor > 2 else {}


def ensure_topic(
    settings: Settings,
    name: str,
    partitions: int,
    config: Mapping[str, str],
    *,
    client: AdminClient | None = None,
) -> bool:
    """Creates topic `name` unless it exists, and waits until the broker knows it. Returns whether it was created.

    Raises Refused if it exists with another number of partitions, Unavailable without a broker.
    """
    client = own(settings, client)
    config = {**config, **in_sync(settings.replication_factor)}
    topic = NewTopic(name, partitions, settings.replication_factor, config=config)
    limit_s = settings.request_timeout_s
    know_controller(client)
    try:
        asked = client.create_topics([topic], operation_timeout=limit_s, request_timeout=limit_s)
        answer_of(asked[name], time.monotonic() + limit_s)
        created = True
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise failure(settings, error.args[0], topic=name) from error
        created = False
    deadline = time.monotonic() + limit_s
    # the controller knows a new topic before the brokers do; until then whoever looks takes it for lost
    while (found := partition_count(settings, name, client=client)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if created:
        return True
    if found != partitions:
        raise Refused(
            f"topic {name} has {found} partitions, not {partitions}",
            fix="use another name, or set the number of partitions to what the topic has",
        )
    return False


def partition_count(settings: Settings, name: str, *, client: AdminClient | None = None) -> int | None:
    """Number of partitions of a topic; None if there is no such topic.

    Raises Unavailable without a broker, Refused without the ACL to describe it.
    """
    client = own(settings, client)
    try:
        found = client.list_topics(name, timeout=settings.request_timeout_s).topics[name]
    except KafkaException as error:
        raise failure(settings, error.args[0], topic=name) from error
    if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return None
    # Kafka doesn't tell this user whether it exists. If we took a registry for missing, we would create it again
    if found.error is not None and found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise failure(settings, found.error, topic=name)
    return len(found.partitions) or None


def topic_names(settings: Settings, *, client: AdminClient | None = None) -> set[str]:
    """Names of all topics. Raises Unavailable without a broker."""
    try:
        return set(own(settings, client).list_topics(timeout=settings.request_timeout_s).topics)
    except KafkaException as error:
        raise failure(settings, error.args[0]) from error


def refuse_without_registry(settings: Settings, client: AdminClient) -> None:
    """Raises Refused if releases have topics but there is no registry: it was deleted. With a new, empty registry those
    topics would belong to no release.
    """
    progress = [name for name in topic_names(settings, client=client) if name.endswith(PROGRESS_SUFFIX)]
    left = sorted(name for name in progress if split_release(name.removesuffix(PROGRESS_SUFFIX)) is not None)
    if left:
        raise Refused(
            f"the registry, topic {REGISTRY_TOPIC}, is gone from the cluster at {settings.bootstrap}, though releases have topics there: {', '.join(left)}",
            fix="restore the topic from a backup of the brokers; if you don't need these releases any more, delete their topics and start over",
        )


def delete_topics(settings: Settings, names: Iterable[str], *, client: AdminClient | None = None) -> list[str]:
    """Deletes exactly these topics. Returns the names that it deleted, without those that were already gone."""
    wanted = sorted(set(names))
    if not wanted:
        return []
    deleted = []
    client = own(settings, client)
    limit_s = settings.request_timeout_s
    know_controller(client)
    deadline = time.monotonic() + limit_s
    for name, future in client.delete_topics(wanted, operation_timeout=limit_s, request_timeout=limit_s).items():
        try:
            answer_of(future, deadline)
            deleted.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise failure(settings, error.args[0], topic=name) from error
    # the controller has answered; the brokers learn of it a moment later
    deadline = time.monotonic() + settings.request_timeout_s
    while topic_names(settings, client=client) & set(deleted) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return deleted
