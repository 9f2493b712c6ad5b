"""What a plan says about inputs that may lose records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestration.operations.looking.kafka_tools import kafka_tool
from pipelines.kafka.topics import in_sync
from pipelines.model.missing import InputNow
from pipelines.settings import Settings


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
