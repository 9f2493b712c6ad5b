"""The searches and clicks that are generated: most clicks come soon after a search of the same user, some too long after."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import chain, islice

from orchestration.sources import Faults, Options, sources_for


def test_most_clicks_come_within_five_seconds_of_their_search_and_some_do_not() -> None:
    searches, clicks = (
        list(chain.from_iterable(islice(source.blocks(None), 60)))
        for source in sources_for("search-results", Options(faults=Faults.none()))
    )
    asked = defaultdict(list)
    for user, value, time_ms in searches:
        asked[user].append((json.loads(value or b"")["terms"], time_ms))
    near: Counter[bool] = Counter()
    for user, value, time_ms in clicks:
        terms = json.loads(value or b"")["page"].partition("/")[0]
        times = [at for known, at in asked[user] if known == terms and at <= time_ms]
        assert times
        near[time_ms - max(times) <= 5_000] += 1
    assert sum(near.values()) == 3_000
    assert 150 < near[False] < 400
