"""Positions: how far something has been read or written. Always next offsets, never last ones."""

from __future__ import annotations

from collections.abc import Container, Mapping

from pipelines.model.base import Frozen
from pipelines.model.names import TopicName, result_of

Offsets = Mapping[int, int]


def dominates(mine: Offsets, theirs: Offsets) -> bool:
    """Whether `mine` is at or past `theirs` on every partition that both have."""
    return all(mine[p] >= offset for p, offset in theirs.items() if p in mine)


def told_offsets(name: str, offsets: Offsets) -> str:
    """For a message: `trades[0] 12, trades[1] 7`."""
    return ", ".join(f"{name}[{partition}] {offset}" for partition, offset in sorted(offsets.items()))


class SourcePosition(Frozen):
    """How far a release has read: source name -> partition -> next offset.

    The keys are the sources' names in the app's definition, since one topic may feed two sources.
    """

    sources: dict[str, dict[int, int]]

    def dominates(self, other: SourcePosition) -> bool:
        """Whether this position is at or past `other` on every partition that both have.

        A partition or source that only one side has is recorded, but not compared.
        """
        return all(dominates(self.sources[s], o) for s, o in other.sources.items() if s in self.sources)

    def same(self, other: SourcePosition) -> bool:
        """Whether both are at the same offset on every partition that both have."""
        return self.dominates(other) and other.dominates(self)

    def by_topic(self, topics: Mapping[str, str]) -> dict[str, dict[int, int]]:
        """Topic -> partition -> next offset, as a consumer group has it; `topics`: source name -> topic.

        If two sources read the same topic: the smaller offset, as one of them still has to read what comes after.
        """
        found: dict[str, dict[int, int]] = {}
        for source, topic in topics.items():
            for partition, offset in self.sources.get(source, {}).items():
                group = found.setdefault(topic, {})
                group[partition] = min(offset, group.get(partition, offset))
        return found

    def told(self) -> str:
        """For a message: `trades[0] 12, trades[1] 7`."""
        return ", ".join(told_offsets(source, offsets) for source, offsets in sorted(self.sources.items()))

    def records_since(self, earlier: SourcePosition) -> int:
        """Offsets between `earlier` and this position; a partition that `earlier` lacks counts from 0."""
        return sum(
            max(0, offset - earlier.sources.get(source, {}).get(partition, 0))
            for source, offsets in self.sources.items()
            for partition, offset in offsets.items()
        )


class Span(Frozen):
    """Input from `start` up to, but not including, `end`; a partition that `start` lacks counts from 0."""

    start: SourcePosition
    end: SourcePosition


def replay_end(until: SourcePosition | None, then: SourcePosition | None) -> SourcePosition | None:
    """Where a generation's bounded replay stops, by how it was started; None: it isn't bounded."""
    return until if then is None else None


def left_out_of(until: SourcePosition | None, then: SourcePosition | None) -> Span | None:
    """The input that a generation leaves out, by how it was started; None: it reads everything."""
    return Span(start=until, end=then) if until is not None and then is not None else None


class ResultPosition(Frozen):
    """How far a result is written: topic -> partition -> next offset."""

    topics: dict[TopicName, dict[int, int]]

    def of(self, topic: str) -> dict[int, int]:
        """The offsets of one topic; empty if it isn't part of this position."""
        return self.topics.get(topic, {})

    def only(self, results: Container[str]) -> ResultPosition:
        """The part of this position that belongs to these of the app's results, by name."""
        return ResultPosition(topics={t: offsets for t, offsets in self.topics.items() if result_of(t) in results})

    @property
    def records(self) -> int:
        """Offsets from the start of each partition, including transaction markers."""
        return sum(sum(offsets.values()) for offsets in self.topics.values())

    def records_since(self, earlier: ResultPosition) -> int:
        """Offsets between `earlier` and this position, including transaction markers, of the topics that both have."""
        return sum(
            max(0, offset - earlier.topics[topic].get(partition, 0))
            for topic, offsets in self.topics.items()
            if topic in earlier.topics
            for partition, offset in offsets.items()
        )

    def dominates(self, other: ResultPosition) -> bool:
        return all(dominates(self.topics[t], o) for t, o in other.topics.items() if t in self.topics)
