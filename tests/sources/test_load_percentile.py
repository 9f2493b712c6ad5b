"""The requests that are generated: a tail that is slow, and hosts that are silent in turns."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import chain, islice

from orchestration.sources import Faults, Options, source_for


def test_few_requests_take_long_and_hosts_are_silent_in_turns() -> None:
    source = source_for("load-percentile", Options(faults=Faults.none()))
    records = list(chain.from_iterable(islice(source.blocks(None), 240)))
    hosts = defaultdict(set)
    for key, _, time_ms in records:
        hosts[(time_ms - source.start_ms) // 120_000].add(key)  # type: ignore[attr-defined]
    everyone = hosts[0] | hosts[1]
    assert len(everyone) == 40
    assert (everyone - hosts[0], everyone - hosts[1]) == ({b"host-00"}, {b"host-01"})
    latencies = sorted(json.loads(value or b"")["latency_ms"] for _, value, _ in records)
    assert latencies[0] >= 1 and latencies[-len(latencies) // 100] > 4 * latencies[len(latencies) // 2]
