"""Requests of hosts, generated: most are answered soon, a few take long, and a host is silent now and then."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
HOSTS = 40
# in each of these minutes another host gets no requests
SILENT_S = 120


class Requests:
    """`per_second` requests (200) of 40 hosts per second of event time. In turns, each host is silent for two minutes."""

    topic = "requests"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 200
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 12, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            silent = second // SILENT_S % HOSTS
            # the others share what the silent one would get
            hosts = (silent + random.integers(1, HOSTS, n)) % HOSTS
            # a host with a higher number is slower; one in 50 requests takes ten times as long
            slow = np.where(random.random(n) < 0.02, 10, 1)
            latencies = np.rint(np.exp(random.normal(3.5, 0.6, n)) * (1 + hosts / HOSTS) * slow).astype(np.int64)
            records: list[Record] = [
                (b"host-%02d" % host, b'{"latency_ms":%d}' % latency, time_ms)
                for host, latency, time_ms in zip(hosts.tolist(), latencies.tolist(), times_ms, strict=True)
            ]
            yield spoil(records, random, options.faults, malformed_json)


APPS = {"load-percentile": without_trades(Requests)}
