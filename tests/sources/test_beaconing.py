"""The connections that are generated: beacons, and what looks like one and is none."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import chain, islice, pairwise

import pytest

from orchestration.sources import Faults, Options, source_for
from orchestration.sources.beaconing import PROGRAMS

SECONDS = 1200


def contacts() -> dict[tuple[str, str], list[int]]:
    """Host and destination -> times of contact in ms, without faults."""
    source = source_for("beaconing", Options(faults=Faults.none()))
    found = defaultdict(list)
    for key, value, time_ms in chain.from_iterable(islice(source.blocks(None), SECONDS)):
        found[(key or b"").decode(), json.loads(value or b"")["destination"]].append(time_ms)
    return found


@pytest.mark.slow
def test_programs_keep_their_intervals_and_people_have_none() -> None:
    found = contacts()
    for program in PROGRAMS:
        times = found.pop((f"host-{program.host:02}", program.destination))
        assert len(times) in (SECONDS * 1000 // program.interval_ms, SECONDS * 1000 // program.interval_ms + 1)
        intervals = [later - earlier for earlier, later in pairwise(times)]
        off = max(abs(interval - program.interval_ms) for interval in intervals) / program.interval_ms
        assert program.spread * 0.5 <= off <= program.spread
    hosts = Counter(host for host, times in found.items() for _ in times)
    assert sum(hosts.values()) == 50 * SECONDS
    # a few pairs have most, and many are rare
    assert hosts.most_common(1)[0][1] > 1000 > 30 > sorted(hosts.values())[len(hosts) // 2]
