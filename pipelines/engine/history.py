"""Where the next portion of a release's history ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka.admin import AdminClient

from pipelines.kafka.client import admin
from pipelines.kafka.clock import now_ms
from pipelines.kafka.offsets import end_offsets, offsets_at
from pipelines.model.history import between, portion, share
from pipelines.model.limits import Limits
from pipelines.model.positions import SourcePosition
from pipelines.settings import Settings

# from a position to the end of the next batch, within limits; None: the rest is one batch. Raises Unavailable if Kafka
# doesn't answer
Portion = Callable[[SourcePosition, Limits], SourcePosition | None]


def by_time(settings: Settings, inputs: Mapping[str, str], until: Callable[[], SourcePosition | None]) -> Portion:
    """Portions of history, in the order of event time. `inputs`: source name -> topic. `until`: how far the input may be
    read at all.
    """
    client, topics = admin(settings), sorted(set(inputs.values()))
    end = _end(settings, inputs, until, client)

    def look(at_ms: int) -> SourcePosition:
        return _by_source(inputs, offsets_at(settings, topics, at_ms, client=client))

    def next_portion(here: SourcePosition, limits: Limits) -> SourcePosition | None:
        # Spark splits its limit into shares, rounded down: a portion of exactly the limit would leave a record
        return portion(here, end(here), look, now_ms(), limits.total - 1)

    return next_portion


def by_share(settings: Settings, inputs: Mapping[str, str], until: Callable[[], SourcePosition | None]) -> Portion:
    """The same share of each partition, for a release whose result doesn't depend on the order of event times. The
    arguments are those of `by_time`.
    """
    end = _end(settings, inputs, until, admin(settings))
    return lambda here, limits: share(here, end(here), limits.by_source)


def _end(
    settings: Settings, inputs: Mapping[str, str], until: Callable[[], SourcePosition | None], client: AdminClient
) -> Callable[[SourcePosition], SourcePosition]:
    """How far the input may be read now, from a position on."""
    topics = sorted(set(inputs.values()))

    def end(here: SourcePosition) -> SourcePosition:
        last, limit = _by_source(inputs, end_offsets(settings, topics, client=client)), until()
        return last if limit is None else between(here, limit, last)

    return end


def _by_source(inputs: Mapping[str, str], found: Mapping[str, dict[int, int]]) -> SourcePosition:
    return SourcePosition(sources={source: found.get(topic, {}) for source, topic in inputs.items()})
