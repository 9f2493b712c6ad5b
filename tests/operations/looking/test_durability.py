"""A plan warns of topics that may lose records, and says what helps."""

from __future__ import annotations

import pytest

from orchestration.operations.looking.durability import cluster_notes, durability_notes, own_topics
from pipelines.model.missing import InputNow, Replication
from pipelines.settings import Settings
from tests.operations.builders import release

THREE = Settings(bootstrap_servers="kafka-1:9092", replication_factor=3)
SAFE = InputNow(first={0: 0}, replicas=3, in_sync=2)
ALTER = "`kafka-configs.sh --bootstrap-server kafka-1:9092 --alter --topic trades --add-config "


def notes(known: InputNow, settings: Settings = THREE) -> list[str]:
    return list(durability_notes(settings, {"trades": known}))


@pytest.mark.parametrize(
    ("known", "said", "helps"),
    [
        (InputNow(first={}, replicas=3, in_sync=2, limits={"retention.ms": 604_800_000}),
         "trades deletes old records (retention.ms=604800000): ", f"{ALTER}retention.ms=-1`"),
        (InputNow(first={}, replicas=3, in_sync=2, limits={"retention.ms": 9, "retention.bytes": 0}),
         "trades deletes old records (retention.ms=9, retention.bytes=0): ", f"{ALTER}retention.ms=-1,retention.bytes=-1`"),
        (InputNow(first={}, replicas=1, in_sync=1), "trades has 1 of the 3 replicas", "`kafka-reassign-partitions.sh`"),
        (InputNow(first={}, replicas=3, in_sync=1), "trades has 3 replicas and min.insync.replicas=1: ",
         f"{ALTER}min.insync.replicas=2`"),
        (InputNow(first={}, replicas=5, in_sync=2), "trades has 5 replicas and min.insync.replicas=2: ",
         f"{ALTER}min.insync.replicas=3`"),
        (InputNow(first={}, replicas=3, in_sync=2, unclean=True), "trades may lose records",
         f"{ALTER}unclean.leader.election.enable=false`"),
    ],
    ids=["time", "time and size", "one replica", "one in sync", "five replicas", "unclean"],
)  # fmt: skip
def test_what_may_be_lost_is_said_with_what_helps(known: InputNow, said: str, helps: str) -> None:
    [note] = notes(known)
    assert note.startswith(said) and helps in note


@pytest.mark.parametrize(
    "known", [SAFE, InputNow(first={}), InputNow(first={}, replicas=3, in_sync=3), InputNow(first={}, compacted=None)]
)
def test_of_a_safe_input_and_of_one_that_is_unknown_nothing_is_said(known: InputNow) -> None:
    assert notes(known) == []


def test_one_broker_needs_no_second_replica() -> None:
    assert notes(InputNow(first={}, replicas=1, in_sync=1, unclean=True), Settings()) == []


# -- Switchyard's own topics, and Kafka's

KEPT = Replication(replicas=3, in_sync=2, unclean=False)
COMMAND = "kafka-configs.sh --bootstrap-server kafka-1:9092 --alter --topic"


@pytest.mark.parametrize(
    ("found", "said", "helps"),
    [
        ({"__transaction_state": Replication(replicas=1, in_sync=1, unclean=True)},
         "__transaction_state has 1 of the 3 replicas", "`kafka-reassign-partitions.sh`"),
        ({"__consumer_offsets": Replication(replicas=3, in_sync=1, unclean=False)},
         "__consumer_offsets has 3 replicas and min.insync.replicas=1: ",
         f"`{COMMAND} __consumer_offsets --add-config min.insync.replicas=2`"),
        ({"a.v1.progress": Replication(replicas=3, in_sync=1, unclean=False), "b": KEPT,
          "a.v1.g1": Replication(replicas=3, in_sync=1, unclean=False)},
         "a.v1.progress, a.v1.g1 have 3 replicas and min.insync.replicas=1: ",
         f"For each: `{COMMAND} TOPIC --add-config min.insync.replicas=2`"),
        ({"switchyard.registry": Replication(replicas=3, in_sync=2, unclean=True)},
         "switchyard.registry has unclean.leader.election.enable=true: ",
         f"`{COMMAND} switchyard.registry --add-config unclean.leader.election.enable=false`"),
        ({"__consumer_offsets": Replication(), "switchyard.registry": Replication(replicas=3), "a.v1.progress": KEPT},
         "this login can't see whether __consumer_offsets, switchyard.registry may lose records", "`switchyard acls"),
    ],
    ids=["one replica", "one in sync", "several", "unclean", "hidden"],
)  # fmt: skip
def test_topics_without_which_no_release_works_are_named_with_what_helps(
    found: dict[str, Replication], said: str, helps: str
) -> None:
    [note] = cluster_notes(THREE, found)
    assert note.startswith(said) and helps in note


def test_of_retired_releases_no_topic_is_needed() -> None:
    first = release("a.v1", state="retired")
    named = own_topics([first, release("a.v2")])
    assert [name for name in named if name.startswith("a.")] == ["a.v2.progress", "a.v2.g1"]
    assert {"__consumer_offsets", "__transaction_state", "switchyard.registry"} < set(named)


@pytest.mark.parametrize("found", [{}, {"__transaction_state": KEPT, "switchyard.registry": KEPT}])
def test_of_topics_that_are_safe_or_do_not_exist_yet_nothing_is_said(found: dict[str, Replication]) -> None:
    assert cluster_notes(THREE, found) == []


def test_with_one_replica_nothing_is_said_of_any_topic() -> None:
    alone = Replication(replicas=1, in_sync=1, unclean=True)
    assert cluster_notes(Settings(), {"__transaction_state": alone, "hidden": Replication()}) == []
