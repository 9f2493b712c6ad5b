"""Results and deltas that a registered follower has yet to read: `status` names those that are lost."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from orchestration.operations.looking import awaited
from orchestration.operations.looking.awaited import lost_to_followers
from pipelines.model.entries import DeltaSegment, Entry, FollowerRegistered, Promoted
from pipelines.model.registry import RegistryState
from tests.operations.builders import Kafka, Log, context_of, generation, staged, switched

TOUCHED, BASE = "a.delta.promote-2", "a.delta.diff-1"


def log(*groups: str) -> Log:
    """Switched from `a.v1` to `a.v2` by two deltas, then to `a.v3`."""
    delta = (DeltaSegment(topic=TOUCHED, start=0, end=4), DeltaSegment(topic=BASE, start=3, end=9))
    entries: list[Entry] = [*staged("a.v1", "a.v2", "a.v3"), *switched(1, None, "a.v1")]
    for entry in (*switched(2, "a.v1", "a.v2"), *switched(3, "a.v2", "a.v3")):
        if isinstance(entry, Promoted) and entry.switch.number == 2:
            entry = entry.model_copy(update={"switch": entry.switch.model_copy(update={"delta": delta})})
        entries.append(entry)
    return Log(*entries, *(FollowerRegistered(alias="a", group=group) for group in groups))


def found(
    monkeypatch: pytest.MonkeyPatch, at: dict[str, int | None], *, gone: Iterable[str] = (), end: int = 9
) -> dict[str, list[str]]:
    """`at`: group -> the switch whose result it reads. `end`: of the base's topic."""
    monkeypatch.setattr(awaited, "committed_number", lambda _, group, *__: at[group])
    known = log(*at)
    kafka = Kafka(ids=lambda topics: {t: "" for t in topics if t not in gone}, end={TOUCHED: {0: 4}, BASE: {0: end}})
    return lost_to_followers(context_of(known, kafka), known.state())


@pytest.mark.parametrize("topic", [TOUCHED, BASE])
def test_a_lost_delta_is_reported_for_followers_that_have_yet_to_read_it(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    said = found(monkeypatch, {"late": 1, "later": 1, "there": 2, "new": None}, gone=[topic])
    assert [*said] == ["a.v2"]
    [words] = said["a.v2"]
    assert words.startswith(
        f"delta {topic} of a.v2 is gone, and followers late, later have yet to read it: follow with a new"
    )
    assert "switchyard forget-follower" in words
    assert found(monkeypatch, {"there": 2, "further": 3, "new": None}, gone=[topic]) == {}
    assert found(monkeypatch, {"late": 1}) == {}


def test_one_that_was_recreated_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    [words] = found(monkeypatch, {"late": 1}, end=8)["a.v2"]
    assert f"delta {BASE} of a.v2 was deleted and recreated" in words
    assert found(monkeypatch, {"there": 2}, end=8) == {}


def test_a_result_that_is_no_longer_written_is_missed_until_its_followers_have_left_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # every release still writes its own: status names them without us
    assert found(monkeypatch, {"late": 1}, gone=["a.v2.g1"]) == {}
    monkeypatch.setattr(awaited, "committed_number", lambda *_: 2)
    known = log("late")
    known.entries.append(generation("a.v2", 2))
    kafka = Kafka(ids=lambda topics: {t: "" for t in topics if t != "a.v2.g1"})
    [words] = lost_to_followers(context_of(known, kafka), known.state())["a.v2"]
    assert words.startswith("result a.v2.g1 of a.v2 is gone, and follower late")


def test_without_followers_nobody_asks() -> None:
    assert lost_to_followers(context_of(log(), Kafka(ids=lambda _: {})), RegistryState()) == {}
