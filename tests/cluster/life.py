"""Releases whose tasks run on other hosts: what stops a driver, how far they are, and what their results must be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from demo.ledger.reader import read
from pipelines.kafka.progress import newest_progress
from pipelines.model.names import result_topic
from pipelines.settings import Settings
from tests.cluster.cluster import SLOW_S, Cluster
from tests.cluster.hosts import Host
from tests.e2e.harness import at_rest
from tests.shared.waiting import until


def assert_refused(cluster: Cluster, host: Host, changes: Mapping[str, Any], what: str, setting: str) -> None:
    """Asserts that the preflight of a driver with these changed settings says `what`, and which setting to change. A store
    that is `OWN` is a folder of the host alone.
    """
    if changes.get("store_url") == "OWN":
        changes = {"store_url": str(cluster.hosts.disk / "store")}
    found = cluster.preflight(host, **changes)
    assert found["what"].startswith(what) and setting in found["fix"], found


def committed(settings: Settings, name: str) -> int:
    """The number of a release's last batch in Kafka; -1: it has none."""
    found = newest_progress(settings, name)
    return found.boundary.batch_id if found else -1


def await_batches(settings: Settings, releases: Iterable[str], more: int = 3) -> None:
    """Waits until each release has committed some more batches."""

    def all_committed() -> list[int]:
        return [committed(settings, name) for name in releases]

    before = all_committed()
    until(
        "a release commits nothing more",
        lambda: all(now >= then + more for now, then in zip(all_committed(), before, strict=True)),
        SLOW_S,
    )


def await_end(settings: Settings, releases: Mapping[str, Mapping[str, str]]) -> None:
    """Waits until each release has read all of its inputs (name -> topic), and another batch would change nothing."""
    for name, inputs in releases.items():
        at_end = partial(at_rest, settings, name, inputs)
        until(f"{name} does not come to the end of its input", at_end, SLOW_S, poll_s=0.5)


def verify_counters(bootstrap: str) -> None:
    """Recomputes the result of product-counter: at each second with a view, the views of every product before it."""
    seen: dict[int, Counter[str]] = {}
    newest_ms = 0
    for record in read(bootstrap, "product-views"):
        assert record.key is not None
        seen.setdefault((record.time_ms // 1000 + 1) * 1000, Counter())[record.key.decode()] += 1
        newest_ms = max(newest_ms, record.time_ms)
    delivered = Counter[tuple[str, int, int]]()
    for record in read(bootstrap, result_topic("product-counter.v1", 1)):
        assert record.key is not None and record.value is not None
        row = {**_json(record.key), **_json(record.value)}
        at_ms = int(datetime.fromisoformat(row["at"]).timestamp() * 1000)
        delivered[row["product"], at_ms, row["views"]] += 1
    last_ms = max(at for _, at, _ in delivered)
    # the watermark is 10 s before the newest view
    assert newest_ms - last_ms < 15_000
    expected, total = Counter[tuple[str, int, int]](), Counter[str]()
    for tick in sorted(tick for tick in seen if tick <= last_ms):
        total += seen[tick]
        expected.update((product, tick, views) for product, views in total.items())
    assert delivered - expected == Counter() and expected - delivered == Counter()


def _json(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)
    return found
