"""A plan warns of inputs that may lose records, and says what helps."""

from __future__ import annotations

import pytest

from orchestration.operations.looking.durability import durability_notes
from pipelines.model.missing import InputNow
from pipelines.settings import Settings

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
