"""What a process asks of a Kafka cluster about topics and groups, and does to topics: of topics by one admin client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from pipelines.kafka import inputs, offsets, topics
from pipelines.model.missing import InputNow
from pipelines.settings import Settings


@dataclass(frozen=True)
class Cluster:
    """The cluster that the settings name. Each method raises as the function of its name does, which says more of it.

    A client of its own for each question would cost a connection, and a look at all metadata.
    """

    settings: Settings
    client: AdminClient

    # -- topics

    def topic_names(self) -> set[str]:
        """Names of all topics."""
        return topics.topic_names(self.settings, client=self.client)

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Topic -> its id; one that isn't there is left out."""
        return inputs.topic_ids(self.settings, names, client=self.client)

    def inputs_now(self, names: Iterable[str]) -> dict[str, InputNow]:
        """Topic -> first offsets, whether it is compacted, and its id; one that isn't there is left out."""
        return inputs.inputs_now(self.settings, names, client=self.client)

    def partition_count(self, name: str) -> int | None:
        """Number of partitions of a topic; None if there is no such topic."""
        return topics.partition_count(self.settings, name, client=self.client)

    def ensure_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> bool:
        """Creates a topic unless it is there. Returns whether it was created."""
        return topics.ensure_topic(self.settings, name, partitions, config, client=self.client)

    def delete_topics(self, names: Iterable[str]) -> list[str]:
        """Deletes exactly these topics; one that is gone already is left out of what it returns."""
        return topics.delete_topics(self.settings, names, client=self.client)

    # -- offsets: topic -> partition -> offset

    def first_offsets(self, names: Iterable[str]) -> dict[str, dict[int, int]]:
        """The first offsets that retention has left."""
        return offsets.first_offsets(self.settings, names, client=self.client)

    def first_of(self, partitions: Mapping[str, int]) -> dict[str, dict[int, int]]:
        """As `first_offsets`, of topics whose number of partitions is known: one request."""
        return offsets.first_of(self.settings, partitions, client=self.client)

    def end_offsets(self, names: Iterable[str], *, committed: bool = True) -> dict[str, dict[int, int]]:
        """The last stable offsets, or with `committed=False` the high watermarks."""
        return offsets.end_offsets(self.settings, names, committed=committed, client=self.client)

    def offsets_at(self, names: Iterable[str], at_ms: int) -> dict[str, dict[int, int]]:
        """The first offsets at or after `at_ms`, milliseconds since the epoch; without a partition that has none."""
        return offsets.offsets_at(self.settings, names, at_ms, client=self.client)

    # -- groups: by a new client. One that has lived through a broker's restart waits for the group's coordinator in vain

    def group_names(self) -> set[str]:
        """All consumer groups, those without members too."""
        return offsets.group_names(self.settings)

    def delete_group(self, group: str) -> None:
        """Deletes a consumer group, if there is one."""
        offsets.delete_group(self.settings, group)

    def group_offsets(self, group: str) -> dict[str, dict[int, tuple[int, str]]]:
        """Topic -> partition -> (next offset, metadata) that a group has committed."""
        return offsets.group_offsets(self.settings, group)
