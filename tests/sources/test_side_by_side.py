"""The records of an app with several topics: one clock for all, and the records of each second in turns."""

from __future__ import annotations

from itertools import islice, pairwise

from orchestration.sources import Faults, Options, Record, sources_for
from orchestration.sources.run import side_by_side


def test_the_records_of_a_second_take_turns() -> None:
    a: list[list[Record]] = [[(b"a", None, 1), (b"a", None, 2), (b"a", None, 3)], [(b"a", None, 1_001)]]
    b: list[list[Record]] = [[(b"b", None, 1)], [(b"b", None, 1_001), (b"b", None, 1_002)]]
    found = list(side_by_side({"a": iter(a), "b": iter(b)}))
    assert [(topic, time) for topic, (_, _, time) in found] == [
        ("a", 1), ("b", 1), ("a", 2), ("a", 3), ("a", 1_001), ("b", 1_001), ("b", 1_002),
    ]  # fmt: skip


def test_ticks_and_events_stay_together_in_time() -> None:
    sources = sources_for("not-viewing", Options(faults=Faults.none()))
    found = list(islice(side_by_side({s.topic: s.blocks(None) for s in sources}), 3_000))
    assert {topic for topic, _ in found} == {"tick", "open"}
    assert all(abs(one[2] - other[2]) <= 20 for (_, one), (_, other) in pairwise(found))
    # each clause of the app has its cases: users who close and open again, and users of whom nothing is known
    users = {topic: {key for name, (key, _, _) in found if name == topic} for topic in ("tick", "open")}
    assert users["tick"] & users["open"] and users["tick"] - users["open"]
    states = [value for topic, (_, value, _) in found if topic == "open"]
    assert {b"Open", b"Close"} == set(states)
