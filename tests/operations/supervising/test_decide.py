"""What a supervisor decides: what is started and when, what hangs, what has failed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from orchestration.operations.supervising.alerts import EntriesUnread, HeartbeatsUnread, ProgressUnread, told
from orchestration.operations.supervising.decide import (
    Decision,
    Memory,
    decide,
    unreadable,
    unreadable_heartbeats,
    unreadable_progress,
)
from orchestration.operations.supervising.overview import ReleaseStatus
from pipelines.model.entries import ReleaseState, Wanted
from pipelines.model.registry import RegistryState, fold
from pipelines.model.unread import Unread
from tests.engine.test_lease import beat
from tests.operations.builders import release

NOW = 1_800_000_000_000
NAME = "sums.v1"


def status(
    name: str = NAME,
    *,
    wanted: Wanted = "running",
    state: ReleaseState = "live",
    holder: str | None = None,
    **known: Any,
) -> ReleaseStatus:
    return ReleaseStatus(
        release=release(name, wanted=wanted, state=state, **known), beat=None, holder=holder, live=False
    )


RUNS = replace(status(holder="process 1"), beat=beat(0.1))
BOOTS = status("sums.v2", holder="process 2, starting for 3 s")


def decided(
    memory: Memory, *found: ReleaseStatus, living: Collection[str] = (), unknown: Collection[str] = (), booting: Collection[str] = (),
    now: int = NOW, limit: int = 100, room: int = 100,
) -> Decision:  # fmt: skip
    return decide(memory, found, living=living, unknown=unknown, booting=booting, now=now, limit=limit, room=room)


# -- what is started


def test_what_is_down_is_started_after_growing_pauses() -> None:
    memory = Memory()
    seconds = range(800)
    times = [s for s in seconds if decided(memory, status(), now=NOW + s * 1000).start == (NAME,)]
    # 5 s, 10 s, 20 s ... 5 min
    assert times == [0, 5, 15, 35, 75, 155, 315, 615]


@pytest.mark.parametrize(
    "other",
    [status(wanted="stopped"), RUNS, BOOTS, status(state="failed"), status(state="retired")],
)
def test_what_is_stopped_held_or_over_is_left_alone(other: ReleaseStatus) -> None:
    assert decided(Memory(), other) == Decision()


def test_what_something_else_starts_is_left_to_it() -> None:
    memory = Memory()
    assert decided(memory, status(), booting={NAME}) == Decision()
    assert memory.attempts == {}


def test_another_release_has_pauses_of_its_own() -> None:
    memory = Memory(attempts={NAME: (1, NOW)})
    assert decided(memory, status(), status("sums.v2")).start == ("sums.v2",)


def test_one_that_has_run_for_long_is_started_at_once() -> None:
    memory = Memory(attempts={NAME: (6, NOW - 900_000)})
    assert decided(memory, status(), limit=6).start == (NAME,)
    assert memory.attempts == {NAME: (1, NOW)}


def test_only_so_many_boot_at_once() -> None:
    down = [status(f"sums.v{n}") for n in range(1, 9)]
    memory = Memory()
    assert decided(memory, *down, room=2).start == ("sums.v1", "sums.v2")
    assert set(memory.attempts) == {"sums.v1", "sums.v2"}
    assert decided(memory, *down[2:], booting={"sums.v1"}, room=2).start == ("sums.v3",)
    assert decided(Memory(), *down[2:], BOOTS, booting={"sums.v1"}, room=2).start == ()


# -- what has failed


def test_what_is_started_too_often_is_given_up() -> None:
    memory, starts, given_up = Memory(), 0, []
    for second in range(300):
        found = decided(memory, status(), now=NOW + second * 1000, limit=4)
        starts += len(found.start)
        given_up += [second] if found.give_up else []
    assert starts == 4
    # not before the last one has had its pause
    assert given_up[0] == 75


def test_why_it_does_not_stay_is_remembered_until_it_runs() -> None:
    memory = Memory()
    decided(memory, replace(RUNS, beat=beat(0.1).model_copy(update={"error": "out of heap"})))
    decided(memory, status())
    assert memory.trouble == {NAME: "out of heap"}
    decided(memory, replace(RUNS, beat=beat(0.1).model_copy(update={"state": "running"})))
    assert memory.trouble == {}


def test_a_failure_is_told_once_and_one_from_before_not_at_all() -> None:
    memory = Memory()
    assert decided(memory, status(state="failed"), status("sums.v2")).failed == ()
    assert decided(memory, status(state="failed"), status("sums.v2", state="failed")).failed == ("sums.v2",)
    assert decided(memory, status(state="failed"), status("sums.v2", state="failed")).failed == ()


# -- what hangs


def test_a_driver_that_lives_and_is_silent_is_replaced_once_that_is_sure() -> None:
    memory = Memory()
    found = [decided(memory, status(), living={NAME}, now=NOW + s * 1000) for s in range(7)]
    assert [bool(each.hung) for each in found] == [False] * 5 + [True] * 2
    # fenced first, then started: two turns
    assert not any(each.start for each in found)
    assert decided(memory, status(), now=NOW + 8_000).start == (NAME,)


def test_one_that_may_live_elsewhere_is_replaced_once_its_silence_is_sure() -> None:
    """After an outage of Kafka, all heartbeats are old. A driver of another host must have time to be heard again."""
    memory = Memory()
    found = [decided(memory, status(), unknown={NAME}, now=NOW + s * 1000) for s in range(6)]
    assert [each.start for each in found] == [()] * 5 + [(NAME,)]
    # nothing of another host can be killed from here
    assert not any(each.hung for each in found)
    decided(memory := Memory(), status(), unknown={NAME})
    decided(memory, RUNS, now=NOW + 3_000)
    assert decided(memory, status(), unknown={NAME}, now=NOW + 6_000).start == ()


def test_a_supervisor_with_long_pauses_replaces_one_that_may_live_too() -> None:
    """After a reboot, nothing is proven of the driver of the boot before."""
    memory = Memory()
    found = [decided(memory, status(), unknown={NAME}, now=NOW + s * 60_000) for s in range(2)]
    assert [each.start for each in found] == [(), (NAME,)]


def test_a_start_in_the_future_is_that_of_another_broker_s_clock() -> None:
    memory = Memory(attempts={NAME: (3, NOW + 60_000)})
    assert decided(memory, status()).start == (NAME,)


def test_one_that_is_heard_again_was_only_slow() -> None:
    memory = Memory()
    decided(memory, status(), living={NAME})
    decided(memory, RUNS, living={NAME}, now=NOW + 3_000)
    assert decided(memory, status(), living={NAME}, now=NOW + 6_000).hung == ()


def test_after_an_outage_of_kafka_silence_counts_anew() -> None:
    memory = Memory()
    decided(memory, status(), living={NAME})
    # no turn in between: the supervisor could not read a heartbeat either
    assert decided(memory, status(), living={NAME}, now=NOW + 40_000).hung == ()
    assert decided(memory, status(), living={NAME}, now=NOW + 45_000).hung == (NAME,)


def test_the_memory_of_an_older_version_is_understood() -> None:
    assert Memory.model_validate_json('{"attempts": {"sums.v1": [2, 7]}}').attempts == {NAME: (2, 7)}


def test_entries_that_can_not_be_read_are_alerted_once_and_newer_ones_again() -> None:
    memory = Memory()
    state = fold(RegistryState(), [Unread(offset=3, reason="garbage")])
    found = unreadable(memory, state)
    assert found == EntriesUnread(entries=1, held=0)
    assert "1 entry of the registry can't be read" in told(found) and "registry check" in told(found)
    memory = Memory.model_validate_json(memory.model_dump_json())
    assert unreadable(memory, state) is None
    newer = unreadable(memory, fold(state, [Unread(offset=9, reason="garbage", must=True)]))
    assert newer == EntriesUnread(entries=2, held=1)
    assert unreadable(memory, RegistryState()) is None


def test_heartbeats_that_can_not_be_read_are_alerted_when_they_begin() -> None:
    memory = Memory()
    found = [unreadable_heartbeats(memory, records) for records in (0, 2, 5, 0, 1)]
    assert found == [None, HeartbeatsUnread(records=2), None, None, HeartbeatsUnread(records=1)]


def test_progress_that_can_not_be_read_is_alerted_when_it_is_found() -> None:
    memory = Memory()
    turns: list[dict[str, str]] = [{}, {"a.v1": "odd"}, {"a.v1": "odd", "b.v1": "odd, too"}, {}, {"a.v1": "odd"}]
    found = [[each.release for each in unreadable_progress(memory, turn)] for turn in turns]
    assert found == [[], ["a.v1"], ["b.v1"], [], ["a.v1"]]
    [alert] = unreadable_progress(Memory(), {"a.v1": "odd"})
    assert alert == ProgressUnread(release="a.v1", why="odd")


def test_what_is_held_is_neither_started_nor_fenced_nor_given_up() -> None:
    memory = Memory(attempts={NAME: (3, NOW - 600_000)}, silent={NAME: NOW - 10_000}, turned=NOW - 1_000)
    for living in ((), (NAME,)):
        assert (
            decide(memory, [status()], living=living, unknown=(), booting=(), now=NOW, limit=3, room=9, held={NAME})
            == Decision()
        )
    assert decide(memory, [status()], living=(), unknown=(), booting=(), now=NOW, limit=3, room=9).give_up == (NAME,)
