"""Inputs that accept records from the future, which move the watermark of an app past what comes later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestration.operations.looking.kafka_tools import kafka_tool
from pipelines.kafka.topics import AHEAD
from pipelines.model.missing import NO_LIMIT_MS, InputNow
from pipelines.settings import Settings


def future_notes(settings: Settings, now: Mapping[str, InputNow], delay_ms: int | None) -> Sequence[str]:
    """What a plan says about inputs that accept records whose time is further in the future than `delay_ms`, the delay
    of the app's watermark (None: it has none). Without such records, a record that is dated with the time of its
    arrival is never late because of another.
    """
    if delay_ms is None:
        return []
    tool = kafka_tool(settings, "kafka-configs.sh")
    return [
        f"{topic} accepts records dated {_far(known.ahead_ms)}: one of them makes what comes after it late. "
        "Let the broker refuse what is dated further in the future than the watermark's delay: "
        f"`{tool} --alter --topic {topic} --add-config {AHEAD}={delay_ms}`"
        for topic, known in sorted(now.items())
        if known.ahead_ms is not None and known.ahead_ms > delay_ms
    ]


def _far(ahead_ms: int) -> str:
    return "at any time in the future" if ahead_ms == NO_LIMIT_MS else f"up to {ahead_ms / 1000:,.0f} s in the future"
