"""The clicks, profiles and searches that are generated."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain, islice

from orchestration.sources import Faults, Options, Record, sources_for


def test_clicks_are_of_known_users_and_others_and_some_follow_a_search() -> None:
    found: dict[str, list[Record]] = {
        source.topic: list(chain.from_iterable(islice(source.blocks(None), 20)))
        for source in sources_for("clickstream", Options(faults=Faults.none()))
    }
    known = {user for user, profile, _ in found["profiles"] if profile is not None}
    assert any(profile is None for _, profile, _ in found["profiles"])
    users = {user for user, *_ in found["clicks"]}
    assert users & known and users - known
    searched = defaultdict(list)
    for user, _, time_ms in found["searches"]:
        searched[user].append(time_ms)
    after = [any(0 <= time_ms - asked <= 1000 for asked in searched[user]) for user, _, time_ms in found["clicks"]]
    assert 0.1 * len(after) < sum(after) < 0.9 * len(after)
