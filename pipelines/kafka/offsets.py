"""Offsets of topics and of consumer groups."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.client import MOVED, answer_of, consumer, own
from pipelines.kafka.failures import TopicGone, failure, forbidden, unavailable
from pipelines.kafka.topics import partition_count
from pipelines.settings import Settings

# librdkafka asks for the leaders before a new admin client is connected, then only after 3 s: this hit one of 150 new
# clients, on busy cores eight or more. Doubled each time, as a broker may really take that long
_PATIENCE_S = 0.1
# a leader hears of a new topic within this time. Until then, it says that there is none
_CREATED_S = 5.0
# after this time without an answer, an event of the consumer may say why there is none
_REFUSED_S = 2.0


def _list(
    settings: Settings,
    wanted: Mapping[TopicPartition, OffsetSpec],
    *,
    committed: bool,
    client: AdminClient | None,
) -> dict[str, dict[int, int]]:
    """Topic -> partition -> the requested offset, of partitions that are known to exist. One request."""
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    # keep a reference: the futures of a garbage-collected client never finish
    client = own(settings, client)
    begun = time.monotonic()
    deadline = begun + settings.request_timeout_s
    patience_s = _PATIENCE_S
    while True:
        futures = client.list_offsets(dict(wanted), isolation_level=level, request_timeout=settings.request_timeout_s)
        found: dict[str, dict[int, int]] = {}
        try:
            for partition, future in futures.items():
                wait_s = patience_s if time.monotonic() < deadline else None
                found.setdefault(partition.topic, {})[partition.partition] = future.result(wait_s).offset
            return found
        except TimeoutError:
            # the client waits before it asks for the leaders; once they are known, it asks for the offsets at once
            patience_s *= 2
        except KafkaException as error:
            code = error.args[0].code()
            is_new = code == KafkaError.UNKNOWN_TOPIC_OR_PART and time.monotonic() < begun + _CREATED_S
            if not (is_new or code in _STALE) or time.monotonic() > deadline:
                topics = ", ".join(sorted({p.topic for p in wanted}))
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise TopicGone(topics) from error
                raise failure(settings, error.args[0], topic=topics) from error
        _look_again(settings, client, {partition.topic for partition in wanted})


# the client knows the leaders from before a broker restart, and would use them forever.
# librdkafka says "no entry" if it knows no leader yet, as for a topic that was just created; and "transport" if the leader
# died while it was asked. Another one leads soon, if there is another broker
_STALE = (KafkaError._NOENT, KafkaError._TRANSPORT, *MOVED)


def _look_again(settings: Settings, client: AdminClient, topics: set[str]) -> None:
    time.sleep(0.05)
    try:
        for topic in topics:
            client.list_topics(topic, timeout=settings.request_timeout_s)
    except KafkaException as error:
        raise failure(settings, error.args[0], topic=topic) from error


def _partitions(settings: Settings, topics: Iterable[str], client: AdminClient) -> list[TopicPartition]:
    out = []
    for topic in topics:
        count = partition_count(settings, topic, client=client)
        if count is None:
            raise Refused(
                f"there is no topic {topic}", fix="check the name; `switchyard apps` lists the inputs of each app"
            )
        out += [TopicPartition(topic, p) for p in range(count)]
    return out


def end_offsets(
    settings: Settings, topics: Iterable[str], *, committed: bool = True, client: AdminClient | None = None
) -> dict[str, dict[int, int]]:
    """Topic -> partition -> end: the last stable offset, or with `committed=False` the high watermark."""
    client = own(settings, client)
    partitions = _partitions(settings, topics, client)
    return _list(settings, {p: OffsetSpec.latest() for p in partitions}, committed=committed, client=client)


def first_offsets(
    settings: Settings, topics: Iterable[str], *, client: AdminClient | None = None
) -> dict[str, dict[int, int]]:
    """Topic -> partition -> the first offset that is kept."""
    client = own(settings, client)
    partitions = _partitions(settings, topics, client)
    return _list(settings, {p: OffsetSpec.earliest() for p in partitions}, committed=True, client=client)


def offsets_at(
    settings: Settings, topics: Iterable[str], at_ms: int, *, client: AdminClient | None = None
) -> dict[str, dict[int, int]]:
    """Topic -> partition -> offset of the first record whose timestamp is at or after `at_ms`, milliseconds since the
    epoch. A partition without such a record is left out.
    """
    client = own(settings, client)
    partitions = _partitions(settings, topics, client)
    found = _list(settings, {p: OffsetSpec.for_timestamp(at_ms) for p in partitions}, committed=True, client=client)
    return {topic: {p: o for p, o in offsets.items() if o >= 0} for topic, offsets in found.items()}


def end_of(
    settings: Settings, topic: str, partitions: int, *, committed: bool = True, client: AdminClient | None = None
) -> dict[int, int]:
    """Partition -> end, for a topic whose number of partitions is known: one request."""
    return ends_of(settings, {topic: partitions}, committed=committed, client=client)[topic]


def ends_of(
    settings: Settings, partitions: Mapping[str, int], *, committed: bool = True, client: AdminClient | None = None
) -> dict[str, dict[int, int]]:
    """Topic -> partition -> end. `partitions`: topic -> number of partitions. One request."""
    wanted = {TopicPartition(t, p): OffsetSpec.latest() for t, count in partitions.items() for p in range(count)}
    return _list(settings, wanted, committed=committed, client=client) if wanted else {}


def first_of(
    settings: Settings, partitions: Mapping[str, int], *, client: AdminClient | None = None
) -> dict[str, dict[int, int]]:
    """Topic -> partition -> the first offset that is kept. `partitions`: topic -> number of partitions. One request."""
    wanted = {TopicPartition(t, p): OffsetSpec.earliest() for t, count in partitions.items() for p in range(count)}
    return _list(settings, wanted, committed=True, client=client) if wanted else {}


def group_names(settings: Settings, *, client: AdminClient | None = None) -> set[str]:
    """All consumer groups, including those without members. Raises Unavailable unless all brokers answer."""
    client = own(settings, client)
    try:
        found = client.list_consumer_groups(request_timeout=settings.request_timeout_s).result(
            settings.request_timeout_s
        )
    except KafkaException as error:
        raise failure(settings, error.args[0]) from error
    except TimeoutError as error:
        raise unavailable(settings, None) from error
    if found.errors:
        raise failure(settings, found.errors[0].args[0])
    return {group.group_id for group in found.valid}


def group_offsets(settings: Settings, group: str) -> dict[str, dict[int, tuple[int, str]]]:
    """Topic -> partition -> (next offset, metadata) that a consumer group has committed, of topics that are there.

    Asks with a consumer that never joins the group. librdkafka's admin client would end the process if the group's
    coordinator has just moved or is not ready yet, as after a broker restart (librdkafka issue 5040, 2.16.0). Raises
    Unavailable without a broker.
    """
    # the offsets of a transaction that is under way count once it is committed, and are not waited for
    client = consumer(settings, group_id=group, isolation_level="read_uncommitted")
    limit_s = settings.request_timeout_s
    try:
        topics = client.list_topics(timeout=limit_s).topics
        asked = [TopicPartition(name, partition) for name, topic in topics.items() for partition in topic.partitions]
        committed = _committed(client, asked, limit_s) if asked else []
    except KafkaException as error:
        raise failure(settings, error.args[0], group=group) from error
    finally:
        client.close()
    found: dict[str, dict[int, tuple[int, str]]] = {}
    for partition in committed:
        # a topic may have been deleted meanwhile
        if partition.error is not None and partition.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise failure(settings, partition.error, group=group)
        if partition.error is None and partition.offset >= 0:
            found.setdefault(partition.topic, {})[partition.partition] = (partition.offset, partition.metadata or "")
    return found


def _committed(client: Consumer, asked: list[TopicPartition], limit_s: float) -> list[TopicPartition]:
    """What the client's group has committed. Raises KafkaException. Why the group's coordinator refuses is only told as an
    event of the consumer, and librdkafka goes on asking.
    """
    deadline = time.monotonic() + limit_s
    while True:
        left_s = deadline - time.monotonic()
        try:
            return client.committed(asked, timeout=max(_PATIENCE_S, min(left_s, _REFUSED_S)))
        except KafkaException as error:
            event = client.poll(0)
            # other events are of an outage that may end in time
            if event is not None and (refused := event.error()) is not None and forbidden(refused):
                raise KafkaException(refused) from error
            if error.args[0].code() not in (KafkaError._TIMED_OUT, KafkaError._WAIT_COORD) or left_s <= _REFUSED_S:
                raise


class GroupInUse(SwitchyardError):
    """A consumer group still has members. Kafka keeps one that died until its session times out."""


def delete_group(settings: Settings, group: str, *, client: AdminClient | None = None) -> None:
    """Deletes a consumer group, if it exists. Raises GroupInUse if it has members, Unavailable with no broker."""
    client = own(settings, client)
    deadline = time.monotonic() + settings.request_timeout_s
    future = client.delete_consumer_groups([group], request_timeout=settings.request_timeout_s)[group]
    try:
        answer_of(future, deadline)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.NON_EMPTY_GROUP:
            raise GroupInUse(
                f"group {group} can't be deleted: {error.args[0].str()}", fix="stop its members, then try again"
            ) from error
        if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
            raise failure(settings, error.args[0], group=group) from error
