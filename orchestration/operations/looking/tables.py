"""The topics of static tables: read whole, up to the ends that they have now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, Message

from orchestration.operations.looking.kafka_tools import kafka_tool
from orchestration.operations.reading import Reading
from pipelines.engine.known import table_beside
from pipelines.engine.table_file import TableFile
from pipelines.errors import Refused
from pipelines.kafka.client import consumer
from pipelines.kafka.failures import failure
from pipelines.kafka.records import read_records
from pipelines.model.entries import StaticTableSpec

if TYPE_CHECKING:
    from pipelines.engine.raw import Record

# how much larger than its table a topic may be: a topic also holds old values, for a while if it is compacted. Reading
# more would take long, and fill the disk
_TIMES_THE_TABLE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRead:
    """A topic as it was read: its id, and up to where, partition -> next offset. `records`: the file of its records."""

    topic: str
    id: str
    position: dict[int, int]
    records: Path


def read_topics(context: Reading, topics: Mapping[str, str], folder: Path) -> dict[str, TopicRead]:
    """Reads the committed records of topics from the first to the last. `topics`: static table -> topic, which exists.

    Writes a file of records for each table into `folder`. Raises Refused for a topic that is too long for a table, and
    SwitchyardError if Kafka does not answer.
    """
    if not topics:
        return {}
    from pipelines.engine.raw import write_records

    names = sorted(set(topics.values()))
    ids, first, end = (
        context.cluster.topic_ids(names),
        context.cluster.first_offsets(names),
        context.cluster.end_offsets(names),
    )
    client = consumer(context.settings, auto_offset_reset="earliest", enable_partition_eof=True)
    try:
        found = {}
        for number, (name, topic) in enumerate(topics.items()):
            path = folder / f"{number}.parquet"
            try:
                write_records(str(path), _records(context, client, topic, first[topic], end[topic]))
            except KafkaException as error:
                raise failure(context.settings, error.args[0], topic=topic) from error
            found[name] = TopicRead(topic=topic, id=ids[topic], position=end[topic], records=path)
        return found
    finally:
        client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTable:
    """A static table as its release keeps it. `said`: which records of its topic are malformed, in words; empty: none."""

    spec: StaticTableSpec
    file: TableFile
    said: str


def kept_tables(topics: Mapping[str, TopicRead], facts: Mapping[str, Mapping[str, Any]]) -> dict[str, KeptTable]:
    """The static tables that a trial has made of `topics`. `facts`: what it says of each, see `pipelines.engine.probe`."""
    found = {}
    for name, read in topics.items():
        said = dict(facts[name])
        words, data = said.pop("said"), Path(table_beside(str(read.records))).read_bytes()
        spec = StaticTableSpec(topic=read.topic, topic_id=read.id, position=read.position, **said)
        found[name] = KeptTable(spec=spec, file=TableFile(digest=spec.digest, data=data), said=words)
    return found


def _records(
    context: Reading, client: Consumer, topic: str, first: Mapping[int, int], end: Mapping[int, int]
) -> Iterator[list[Record]]:
    at_most, size = context.settings.static_table_max_bytes * _TIMES_THE_TABLE, 0
    # a partition that is empty has nothing to wait for
    wanted = {p: offset for p, offset in end.items() if offset > first[p]}
    for messages in read_records(client, topic, first, wanted, context.settings.request_timeout_s, lambda: None, {}):
        records = [_record(message) for message in messages]
        size += sum(len(r.key or b"") + len(r.value or b"") for r in records)
        if size > at_most:
            raise Refused(
                f"topic {topic} has more than {at_most:,} bytes of records: staging reads a static table's topic whole",
                fix="make it a Changelog and join it with as_of; or let Kafka compact the topic: "
                f"`{kafka_tool(context.settings, 'kafka-configs.sh')} --alter --topic {topic} --add-config cleanup.policy=compact`",
            )
        yield records


def _record(message: Message) -> Record:
    from pipelines.engine.raw import Record

    key, value, (_, at_ms) = message.key(), message.value(), message.timestamp()
    return Record(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        key=key,
        value=value,
        time=datetime.fromtimestamp(max(at_ms, 0) / 1000, UTC),
    )
