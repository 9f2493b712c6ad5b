"""The topics that the queries read: trades, visits of members, and the members."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.race.queries import MEMBERS
from orchestration.sources import Options, produce, sources_for
from orchestration.sources.base import START_MS, Faults
from pipelines.kafka.client import producer
from pipelines.kafka.topics import DAY_MS, INPUT, ensure_topic
from pipelines.settings import Settings

PARTITIONS = 4
# of event time
_VISITS_PER_S = 2_000
_BLOCK = 100_000
LAST = "last-"


def load(settings: Settings, topic: str, records: int) -> float:
    """Writes `records` records to a topic of the queries, `MEMBERS` to that of the members. Returns the seconds it took."""
    began = time.monotonic()
    if topic == "trades":
        # in all engines but Switchyard, a record that is no trade is a row of nulls, or an error
        faults = Faults(malformed=0, tombstone=0)
        produce(settings, sources_for("stock-stats", Options(faults=faults)), history=records)
    elif topic == "visits":
        _visits(settings, records)
    else:
        _members(settings)
    return time.monotonic() - began


def _visits(settings: Settings, records: int) -> None:
    """Visits in the order of their times, by members and of pages at random, the same ones in each run. Then, an hour
    later, one in each partition by a member whose name starts with `LAST`: it takes the watermark past all others.
    """
    ensure_topic(settings, "visits", PARTITIONS, INPUT)
    random = np.random.default_rng(7)
    client = producer(settings)
    keys = [b"member-%d" % number for number in range(MEMBERS)]
    for first in range(0, records, _BLOCK):
        size = min(_BLOCK, records - first)
        members, pages = random.integers(0, MEMBERS, size).tolist(), random.integers(0, 1_000_000, size).tolist()
        for i, (member, page) in enumerate(zip(members, pages, strict=True), start=first):
            at_ms = START_MS + i * 1000 // _VISITS_PER_S
            while True:
                try:
                    client.produce("visits", b'{"page":%d}' % page, keys[member], timestamp=at_ms)
                    break
                except BufferError:
                    client.poll(0.1)
        client.poll(0)
    later_ms = START_MS + records * 1000 // _VISITS_PER_S + 3_600_000
    for partition in range(PARTITIONS):
        key = f"{LAST}{partition}"
        client.produce("visits", b'{"page":0}', key, partition=partition, timestamp=later_ms)
    client.flush()


def _members(settings: Settings) -> None:
    """A level for each member, a day before the first visit."""
    ensure_topic(settings, "members", PARTITIONS, {**INPUT, "cleanup.policy": "compact"})
    client = producer(settings)
    for number in range(MEMBERS):
        client.produce("members", b'{"level":%d}' % (number % 10), b"member-%d" % number, timestamp=START_MS - DAY_MS)
    client.flush()
