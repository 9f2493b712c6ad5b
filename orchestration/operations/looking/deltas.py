"""Delta topics that are lost. The registry keeps no ids of them, but one that was recreated under the same name is too short."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from orchestration.operations.reading import Reading

Ends = Mapping[str, Mapping[int, int]]


def delta_ends(context: Reading, topics: Iterable[str]) -> Ends:
    """The end offsets of delta topics that exist."""
    there = sorted(topics)
    found = context.cluster.end_offsets(there) if there else {}
    return {topic: found.get(topic, {}) for topic in there}


def how_lost(topic: str, end: int, ends: Ends) -> Literal["gone", "another"] | None:
    """How a delta is lost that reaches to `end` of its only partition; None: it isn't. `ends`: of those that exist."""
    if topic not in ends:
        return "gone"
    return "another" if ends[topic].get(0, end) < end else None
