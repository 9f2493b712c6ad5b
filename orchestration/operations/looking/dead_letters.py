"""The newest dead letters of a release. Reads only the end of their topic, which may hold millions."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message

from orchestration.operations.lifecycle import find_release
from orchestration.operations.reading import Reading
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.client import consumer
from pipelines.kafka.failures import failure
from pipelines.kafka.progress import ProgressLost
from pipelines.kafka.records import read_records
from pipelines.model.names import REPLAY, SOURCE, dead_letter_topic, result_of
from pipelines.model.parts import Loss
from pipelines.model.registry import Release

# bytes of a key and of a value that are shown; either may have 1 MiB
SHOWN_BYTES = 200
# offsets that a first look reads for each letter: a transaction of one letter has its marker as a second record
_OFFSETS_EACH = 2
# how much further back each look reads than the one before
_FURTHER = 8
# a letter may have 1 MiB: what is fetched in advance takes no more than this
_QUEUE_KB = 8_192
_UTF8 = getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter. `offset`: its own, in the topic of dead letters. `at_ms`: when it was written, by the broker's clock.

    `record`: the record of an input that it comes from, as `trades:0:7`; None: unknown. `result`: for a row that is too
    large, the topic that it was for; None for a malformed record. `key` and `value`: the first bytes as text; bytes that
    are not UTF-8 appear as `\\xff`. `key_bytes`, `value_bytes`: how long they are, even if the letter has to do without
    them. `replay`: whether the record was read again after a reset.
    """

    offset: int
    at_ms: int
    reason: str
    record: str | None
    result: str | None
    key: str | None
    key_bytes: int
    value: str | None
    value_bytes: int
    replay: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The newest letters of a release, oldest first. `total`: how many there are since its generation started; None:
    unknown, because its progress topic is gone.
    """

    release: str
    generation: int
    total: int | None
    letters: tuple[Letter, ...]


def dead_letters(context: Reading, name: str, *, limit: int, result: str | None = None) -> DeadLetters:
    """The newest `limit` dead letters of a release. `result`: only the rows that were too large for this result.

    Raises BadUsage for an unknown release or result, Refused if their topic is gone or this login may not read it.
    """
    state = context.registry.state()
    release = find_release(state, name)
    if result is not None and result not in release.spec.outputs:
        named = ", ".join(filter(None, release.spec.outputs))
        raise BadUsage(
            f"{release.name} has no result {result}",
            fix=f"its results are: {named}" if named else "leave out --result: it has only one result",
        )
    topic = dead_letter_topic(release.name)
    if release.state == "retired":
        raise Refused(
            f"{release.name} is retired: its dead letters were deleted",
            fix=f"`switchyard log {release.name}` shows when and why it was retired",
        )
    if context.cluster.partition_count(topic) is None:
        loss = Loss(release=release.name, part="dead letters", name=topic)
        raise Refused(loss.what, fix=loss.way)
    return DeadLetters(
        release=release.name,
        generation=release.generation,
        total=_total(context, release),
        letters=tuple(_newest(context, topic, limit, result)),
    )


def letter_of(offset: int, at_ms: int, key: bytes | None, value: bytes | None, headers: Mapping[str, bytes]) -> Letter:
    """A record of a topic of dead letters, as `engine/records.py` writes it."""
    texts = {name: content.decode(errors="backslashreplace") for name, content in headers.items()}
    # only a letter of a row names its batch
    row = "batch" in texts
    place = texts.get(SOURCE) if row else ":".join(texts.get(part, "?") for part in ("topic", "partition", "offset"))
    shown_key = texts.get("key-start") if not key and "key-start" in texts else _start(key)
    return Letter(
        offset=offset,
        at_ms=at_ms,
        reason=texts.get("reason", ""),
        record=place,
        result=texts.get("topic") if row else None,
        key=shown_key,
        key_bytes=_length(texts.get("key-bytes"), key),
        value=_start(value),
        value_bytes=_length(texts.get("value-bytes"), value),
        replay=texts.get(REPLAY) == "true",
    )


def _total(context: Reading, release: Release) -> int | None:
    """How many dead letters the release has written since its generation started. Offsets don't tell: they count the
    markers of transactions, too.
    """
    try:
        newest = context.progress(release.name)
    except ProgressLost:
        return None
    return newest.total.dead_lettered if newest is not None and newest.generation == release.generation else 0


def _newest(context: Reading, topic: str, limit: int, result: str | None) -> list[Letter]:
    """The newest `limit` letters that are wanted, by time. Holds no more than that many for each partition."""
    first = context.cluster.first_offsets([topic])[topic]
    end = context.cluster.end_offsets([topic])[topic]
    client = consumer(
        context.settings, auto_offset_reset="earliest", enable_partition_eof=True, queued_max_messages_kbytes=_QUEUE_KB
    )
    found: list[Letter] = []
    try:
        for partition in end:
            at = first[partition], end[partition]
            found += _of_partition(client, topic, partition, at, limit, result, context.settings.request_timeout_s)
    except KafkaException as error:
        raise failure(context.settings, error.args[0], topic=topic) from error
    finally:
        client.close()
    return sorted(found, key=lambda letter: (letter.at_ms, letter.offset))[-limit:]


def _of_partition(
    client: Consumer, topic: str, partition: int, at: tuple[int, int], limit: int, result: str | None, timeout_s: float
) -> deque[Letter]:
    """The newest letters of one partition. `at`: its first offset and its end.

    Looks further back while too few are found: many offsets may be markers, or letters that are not wanted.
    """
    first, end = at
    back = limit * _OFFSETS_EACH
    while True:
        start = max(first, end - back)
        kept: deque[Letter] = deque(maxlen=limit)
        for messages in read_records(client, topic, {partition: start}, {partition: end}, timeout_s, lambda: None, {}):
            letters = map(_letter, messages)
            kept.extend(each for each in letters if result is None or _is_for(each, result))
        if len(kept) == limit or start == first:
            return kept
        back *= _FURTHER


def _letter(message: Message) -> Letter:
    found: Any = message.headers() or ()
    headers = {name: content for name, content in found if content is not None}
    return letter_of(message.offset() or 0, message.timestamp()[1], message.key(), message.value(), headers)


def _is_for(letter: Letter, result: str) -> bool:
    return letter.result is not None and result_of(letter.result) == result


def _start(data: bytes | None) -> str | None:
    """The first bytes as text. A character that the cut divides is left out."""
    if data is None:
        return None
    return _UTF8("backslashreplace").decode(data[:SHOWN_BYTES], final=len(data) <= SHOWN_BYTES)


def _length(told: str | None, data: bytes | None) -> int:
    return int(told) if told is not None and told.isdecimal() else len(data or b"")
