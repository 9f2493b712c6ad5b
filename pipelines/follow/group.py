"""What a follower's consumer group has committed: offsets, with the chain number and the delta segment as metadata."""

from __future__ import annotations

import json

from confluent_kafka import TopicPartition

from pipelines.follow.moves import Chain, Commits, Committed, FollowerPosition, group_number
from pipelines.kafka.offsets import group_offsets
from pipelines.settings import Settings


def to_commit(position: FollowerPosition) -> list[TopicPartition]:
    """A position as one commit; each partition's metadata says where in the chain it is."""
    said: dict[str, str | int | None] = {
        "alias": position.alias,
        "switch": position.number,
        "segment": position.segment,
    }
    if position.result:
        said["result"] = position.result
    note = json.dumps(said)
    return [TopicPartition(position.topic, p, o, note) for p, o in position.offsets.items()]


def read_commits(settings: Settings, group: str, alias: str) -> Commits:
    """What `group` has committed while it followed `alias`; offsets of anything else are left out.

    Raises Unavailable without a broker.
    """
    found: dict[str, dict[int, Committed]] = {}
    for topic, partitions in group_offsets(settings, group).items():
        for partition, (offset, note) in partitions.items():
            committed = _parse(offset, note, alias)
            if committed is not None:
                found.setdefault(topic, {})[partition] = committed
    return found


def committed_number(settings: Settings, group: str, alias: str, chain: Chain) -> int | None:
    """Number of the switch whose result all members of `group` read; None if it has committed nothing.

    The group no longer needs the results and deltas before it.
    """
    return group_number(read_commits(settings, group, alias), chain)


def _parse(offset: int, note: str, alias: str) -> Committed | None:
    try:
        data = json.loads(note)
        segment = data["segment"]
        if data["alias"] != alias:
            return None
        at = None if segment is None else int(segment)
        return Committed(offset, int(data["switch"]), at, str(data.get("result", "")))
    except (ValueError, KeyError, TypeError):
        return None  # something else committed it with the same group name
