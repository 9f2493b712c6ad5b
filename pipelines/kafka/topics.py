"""Topics: created with explicit settings, described, deleted by exact name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from pipelines.errors import Refused
from pipelines.kafka.client import answer_of, failure, own
from pipelines.model.names import PROGRESS_SUFFIX, REGISTRY_TOPIC, split_release
from pipelines.settings import Settings

_POLL_S = 0.02
DAY_MS = 24 * 3600 * 1000
# longer than the longest operation, or "as of the cut" is compacted away under it
COMPACTION_LAG_MS = 7 * DAY_MS

APPEND_ONLY = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
# records carry event time: without explicit retention the broker deletes history minutes after it was written
INPUT = {**APPEND_ONLY, "message.timestamp.type": "CreateTime"}
RESULT_STREAM = {**APPEND_ONLY, "message.timestamp.type": "LogAppendTime"}
RESULT_TABLE = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": str(COMPACTION_LAG_MS),
    "delete.retention.ms": str(COMPACTION_LAG_MS),
    "message.timestamp.type": "LogAppendTime",
}
# keys run round a ring: the newest record stays for ever, the others for as long as an operation may need them
PROGRESS = {**RESULT_TABLE, "segment.ms": str(DAY_MS)}
# the newest of each version stays
SNAPSHOTS = {"cleanup.policy": "compact", "segment.ms": str(DAY_MS), "segment.bytes": str(16 * 1024 * 1024)}
# when a driver was heard is for the broker's clock to say: a driver's own may be wrong
HEARTBEATS = {
    "cleanup.policy": "delete",
    "retention.ms": "3600000",
    "segment.ms": "600000",
    "message.timestamp.type": "LogAppendTime",
}


def ensure_topic(
    settings: Settings,
    name: str,
    partitions: int,
    config: Mapping[str, str],
    *,
    client: AdminClient | None = None,
) -> bool:
    """Creates topic `name` unless it is there. Returns whether it was created.

    Raises Refused if it is there with another number of partitions, Unavailable without a broker.
    """
    client = own(settings, client)
    topic = NewTopic(name, partitions, settings.replication_factor, config=dict(config))
    limit_s = settings.request_timeout_s
    try:
        asked = client.create_topics([topic], operation_timeout=limit_s, request_timeout=limit_s)
        answer_of(asked[name], time.monotonic() + limit_s)
        return True
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise failure(settings, error.args[0], topic=name) from error
    deadline = time.monotonic() + settings.request_timeout_s
    # the controller knows of a topic that another has just made before the brokers do
    while (found := partition_count(settings, name, client=client)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
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
    # there or not, this user isn't told: taken for missing, a registry would be made anew
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
    """Raises Refused where there is no registry, and topics of releases are: it was deleted, and an empty one in its place
    would take them for nobody's.
    """
    progress = [name for name in topic_names(settings, client=client) if name.endswith(PROGRESS_SUFFIX)]
    left = sorted(name for name in progress if split_release(name.removesuffix(PROGRESS_SUFFIX)) is not None)
    if left:
        raise Refused(
            f"the registry, topic {REGISTRY_TOPIC}, is gone from the cluster at {settings.bootstrap}, though releases have topics there: {', '.join(left)}",
            fix="restore the topic from a backup of the brokers; where no release is to go on, delete their topics, and begin anew",
        )


def delete_topics(settings: Settings, names: Iterable[str], *, client: AdminClient | None = None) -> list[str]:
    """Deletes exactly these topics; one that is gone already is left out of the returned names."""
    wanted = sorted(set(names))
    if not wanted:
        return []
    deleted = []
    client = own(settings, client)
    limit_s = settings.request_timeout_s
    deadline = time.monotonic() + limit_s
    for name, future in client.delete_topics(wanted, operation_timeout=limit_s, request_timeout=limit_s).items():
        try:
            answer_of(future, deadline)
            deleted.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise failure(settings, error.args[0], topic=name) from error
    # the controller has answered; brokers know a moment later
    deadline = time.monotonic() + settings.request_timeout_s
    while topic_names(settings, client=client) & set(deleted) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return deleted
