"""What a process asks of a Kafka cluster about topics and groups, and does to topics. Topics share one admin client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from pipelines.kafka import inputs, offsets, topics
from pipelines.model.missing import InputNow, Replication
from pipelines.settings import Settings


@dataclass(frozen=True)
class Cluster:
    """The cluster that the settings name. Each method raises what the function of its name raises; see there.

    All methods share one client: a new client for each question would cost a connection and a full metadata request.
    """

    settings: Settings
    client: AdminClient

    # -- topics

    def topic_names(self) -> set[str]:
        """Names of all topics."""
        return topics.topic_names(self.settings, client=self.client)

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Topic -> its id. Missing topics are left out."""
        return inputs.topic_ids(self.settings, names, client=self.client)

    def inputs_now(self, names: Iterable[str]) -> dict[str, InputNow]:
        """Topic -> first offsets, whether it is compacted, and its id. Missing topics are left out."""
        return inputs.inputs_now(self.settings, names, client=self.client)

    def replication(self, names: Iterable[str]) -> dict[str, Replication]:
        """Topic -> how the cluster keeps it. Missing topics are left out."""
        return inputs.replication(self.settings, names, client=self.client)

    def partition_count(self, name: str) -> int | None:
        """Number of partitions of a topic; None if there is no such topic."""
        return topics.partition_count(self.settings, name, client=self.client)

    def ensure_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> bool:
        """Creates a topic unless it exists. Returns whether it was created."""
        return topics.ensure_topic(self.settings, name, partitions, config, client=self.client)

    def delete_topics(self, names: Iterable[str]) -> list[str]:
        """Deletes exactly these topics. Returns the names that it deleted, without those that were already gone."""
        return topics.delete_topics(self.settings, names, client=self.client)

    # -- offsets: topic -> partition -> offset

    def first_offsets(self, names: Iterable[str]) -> dict[str, dict[int, int]]:
        """The first offsets that are kept."""
        return offsets.first_offsets(self.settings, names, client=self.client)

    def first_of(self, partitions: Mapping[str, int]) -> dict[str, dict[int, int]]:
        """As `first_offsets`, for topics whose number of partitions is known: one request."""
        return offsets.first_of(self.settings, partitions, client=self.client)

    def end_offsets(self, names: Iterable[str], *, committed: bool = True) -> dict[str, dict[int, int]]:
        """The last stable offsets, or with `committed=False` the high watermarks."""
        return offsets.end_offsets(self.settings, names, committed=committed, client=self.client)

    def offsets_at(self, names: Iterable[str], at_ms: int) -> dict[str, dict[int, int]]:
        """The first offsets at or after `at_ms`, milliseconds since the epoch. A partition without one is left out."""
        return offsets.offsets_at(self.settings, names, at_ms, client=self.client)

    # -- groups: each with a new client. One that has seen a broker restart never finds the group's coordinator again

    def group_names(self) -> set[str]:
        """All consumer groups, including those without members."""
        return offsets.group_names(self.settings)

    def delete_group(self, group: str) -> None:
        """Deletes a consumer group, if it exists. Raises GroupInUse if it has members."""
        offsets.delete_group(self.settings, group)

    def group_offsets(self, group: str) -> dict[str, dict[int, tuple[int, str]]]:
        """Topic -> partition -> (next offset, metadata) that a group has committed."""
        return offsets.group_offsets(self.settings, group)
