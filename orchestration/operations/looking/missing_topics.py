"""What a refusal says about inputs whose topics do not exist: the command that creates each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from orchestration.operations.looking.kafka_tools import kafka_tool
from pipelines.kafka.topics import AHEAD, in_sync
from pipelines.settings import Settings

_LEAST_MS = 1_000
# of an input that nothing is known about
_PARTITIONS = 4
_UNITS_MS = {"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_PART = r"(\d{1,15}) +(millisecond|second|minute|hour|day)s?"
_PARTS = re.compile(f"{_PART}(?: +{_PART})*", re.IGNORECASE)


def how_to_create(settings: Settings, app: str, topics: Sequence[str], watermark: str | None) -> str:
    """How to create `topics`, so that staging warns of none of them. `watermark`: the delay of the app's, as the app
    says it.
    """
    from orchestration.sources import Options, app_names, sources_for

    sources = sources_for(app, Options()) if app in app_names() else ()
    partitions = {source.topic: source.partitions for source in sources}
    tool, more = kafka_tool(settings, "kafka-topics.sh"), _options(settings, watermark)
    commands = [
        f"`{tool} --create --topic {topic} --partitions {partitions.get(topic, _PARTITIONS)}{more}`" for topic in topics
    ]
    it = "it" if len(topics) == 1 else "them"
    produced = set(topics) <= set(partitions)
    filled = f", or let `switchyard produce {app} --history 100000` create and fill {it}" if produced else ""
    return f"create {it}: {', '.join(commands)}{filled}"


def _options(settings: Settings, watermark: str | None) -> str:
    replicas = settings.replication_factor
    # with one, the cluster's own default counts
    factor = f" --replication-factor {replicas}" if replicas > 1 else ""
    return factor + "".join(f" --config {name}={value}" for name, value in input_config(replicas, watermark).items())


def input_config(replicas: int, watermark: str | None) -> Mapping[str, str]:
    """The settings of a topic of which `future_notes` and `durability_notes` have nothing to say."""
    config = {"retention.ms": "-1", "retention.bytes": "-1"}
    # the clocks of producers and brokers differ by more than a short delay
    if watermark is not None and (delay_in_ms(watermark) or 0) >= _LEAST_MS:
        config[AHEAD] = str(delay_in_ms(watermark))
    config |= in_sync(replicas)
    return config | ({"unclean.leader.election.enable": "false"} if replicas > 1 else {})


def delay_in_ms(watermark: str) -> int | None:
    """The delay of a watermark without Spark, which has not started yet. None: only Spark can read it."""
    if _PARTS.fullmatch(watermark.strip()) is None:
        return None
    return sum(int(number) * _UNITS_MS[unit.lower()] for number, unit in re.findall(_PART, watermark, re.IGNORECASE))
