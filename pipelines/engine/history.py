"""Where the next portion of a release's history ends, found by the record times that Kafka knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipelines.kafka.client import admin
from pipelines.kafka.offsets import end_offsets, offsets_at
from pipelines.kafka.registry import now_ms
from pipelines.model.history import between, portion
from pipelines.model.positions import SourcePosition
from pipelines.settings import Settings

Portion = Callable[[SourcePosition], SourcePosition | None]


def by_time(
    settings: Settings, inputs: Mapping[str, str], records: int, until: Callable[[], SourcePosition | None]
) -> Portion:
    """A function from a position to the end of the next portion; None: the rest is one batch of fewer than `records`.

    `inputs`: source name -> topic. `until`: how far the input may be read at all. The function raises Unavailable if Kafka
    doesn't answer.
    """
    client, topics = admin(settings), sorted(set(inputs.values()))

    def by_source(found: Mapping[str, dict[int, int]]) -> SourcePosition:
        return SourcePosition(sources={source: found.get(topic, {}) for source, topic in inputs.items()})

    def look(at_ms: int) -> SourcePosition:
        return by_source(offsets_at(settings, topics, at_ms, client=client))

    def next_portion(here: SourcePosition) -> SourcePosition | None:
        end, limit = by_source(end_offsets(settings, topics, client=client)), until()
        if limit is not None:
            end = between(here, limit, end)
        # Spark splits its limit into shares, rounded down: a portion of exactly `records` would leave a record
        return portion(here, end, look, now_ms(), records - 1)

    return next_portion


def all_at_once(here: SourcePosition) -> SourcePosition | None:
    """For a release whose result doesn't depend on the order of event times: no portions."""
    return None
