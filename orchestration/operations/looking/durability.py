"""What is said about topics that may lose records: inputs, Switchyard's own topics, and those of Kafka itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from orchestration.operations.looking.kafka_tools import kafka_tool
from pipelines.kafka.topics import in_sync
from pipelines.model.missing import InputNow, Replication
from pipelines.model.names import HEARTBEATS_TOPIC, KAFKA_TOPICS, REGISTRY_TOPIC, SNAPSHOTS_TOPIC, progress_topic
from pipelines.model.registry import Release
from pipelines.settings import Settings

Value = TypeVar("Value")


def own_topics(releases: Iterable[Release]) -> Sequence[str]:
    """The topics that no release works without: Kafka's own, those of the registry, and those of `releases` that are not
    retired.
    """
    kept = [release for release in releases if release.state != "retired"]
    written = [name for each in kept for name in (progress_topic(each.name), *each.result_topics.values())]
    return [*KAFKA_TOPICS, REGISTRY_TOPIC, SNAPSHOTS_TOPIC, HEARTBEATS_TOPIC, *written]


def cluster_notes(settings: Settings, found: Mapping[str, Replication]) -> Sequence[str]:
    """About `own_topics` that a dead broker may take records of. `found`: those that exist. One note for each cause, with
    what helps.
    """
    alter = f"{kafka_tool(settings, 'kafka-configs.sh')} --alter --topic"
    wanted = settings.replication_factor
    notes = []
    for replicas, names in _by(found, lambda each: each.replicas):
        if replicas < wanted:
            notes.append(
                f"{_have(names)} {replicas} of the {wanted} replicas that `replication_factor` asks for: the loss of fewer "
                "disks stops or loses what is in there. `kafka-reassign-partitions.sh` adds replicas"
            )
    for (replicas, now), names in _by(found, _replicas_and_in_sync):
        for name, least in in_sync(replicas).items():
            if now < int(least):
                notes.append(
                    f"{_have(names)} {replicas} replicas and {name}={now}: a record that counts as written may be lost with "
                    f"one broker. {_each(alter, names)} --add-config {name}={least}`"
                )
    for _, names in _by(found, lambda each: True if each.unclean and (each.replicas or 0) > 1 else None):
        notes.append(
            f"{_have(names)} unclean.leader.election.enable=true: records may be lost that were read already, when brokers "
            f"die. {_each(alter, names)} --add-config unclean.leader.election.enable=false`"
        )
    hidden = [name for name, each in found.items() if each.replicas is None or each.in_sync is None]
    if hidden and wanted > 1:
        notes.append(
            f"this login can't see whether {', '.join(hidden)} may lose records (needs the ACLs Describe and "
            "DescribeConfigs): `switchyard acls` prints those of an operator"
        )
    return notes


def _replicas_and_in_sync(each: Replication) -> tuple[int, int] | None:
    return None if each.replicas is None or each.in_sync is None else (each.replicas, each.in_sync)


def _by(
    found: Mapping[str, Replication], value_of: Callable[[Replication], Value | None]
) -> Sequence[tuple[Value, Sequence[str]]]:
    """The topics by a value, without those of which it is unknown."""
    grouped: dict[Value, list[str]] = {}
    for name, each in found.items():
        if (value := value_of(each)) is not None:
            grouped.setdefault(value, []).append(name)
    return list(grouped.items())


def _have(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}"


def _each(alter: str, names: Sequence[str]) -> str:
    """The start of a command for one topic, or for each of several."""
    return f"To change that: `{alter} {names[0]}" if len(names) == 1 else f"For each: `{alter} TOPIC"


def durability_notes(settings: Settings, now: Mapping[str, InputNow]) -> Sequence[str]:
    """About inputs that delete old records, or whose acknowledged records may be lost with one broker. Each with what
    helps.
    """
    alter = f"{kafka_tool(settings, 'kafka-configs.sh')} --alter --topic"
    return [note for topic, known in sorted(now.items()) for note in _notes(settings, f"{alter} {topic}", topic, known)]


def _notes(settings: Settings, alter: str, topic: str, known: InputNow) -> Sequence[str]:
    notes = []
    if known.limits:
        limits = ", ".join(f"{name}={limit}" for name, limit in known.limits.items())
        none = ",".join(f"{name}=-1" for name in known.limits)
        notes.append(
            f"{topic} deletes old records ({limits}): a version that is staged later can't read them. To keep them: "
            f"`{alter} --add-config {none}`"
        )
    if 0 < known.replicas < settings.replication_factor:
        notes.append(
            f"{topic} has {known.replicas} of the {settings.replication_factor} replicas that `replication_factor` asks for, "
            "so it survives the loss of fewer disks. `kafka-reassign-partitions.sh` adds replicas"
        )
    for name, wanted in in_sync(known.replicas).items():
        if known.in_sync is not None and known.in_sync < int(wanted):
            notes.append(
                f"{topic} has {known.replicas} replicas and {name}={known.in_sync}: a record may be lost that its producer "
                f"took for written. Let more replicas have it first: `{alter} --add-config {name}={wanted}`"
            )
    if known.unclean and known.replicas > 1:
        notes.append(
            f"{topic} may lose records that were read already, when brokers die (unclean.leader.election.enable=true): "
            f"`{alter} --add-config unclean.leader.election.enable=false`"
        )
    return notes
