"""Requests of hosts, generated: most are answered soon, a few take long, and a host is silent now and then."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades

HOSTS = 40
# in each of these minutes another host gets no requests
SILENT_S = 120


class Requests(PerSecond):
    """`per_second` requests (200) of 40 hosts per second of event time. In turns, each host is silent for two minutes."""

    topic = "requests"
    per_second = 200
    stream = 12

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        silent = second // SILENT_S % HOSTS
        # the others share what the silent one would get
        hosts = (silent + random.integers(1, HOSTS, n)) % HOSTS
        # a host with a higher number is slower; one in 50 requests takes ten times as long
        slow = np.where(random.random(n) < 0.02, 10, 1)
        latencies = np.rint(np.exp(random.normal(3.5, 0.6, n)) * (1 + hosts / HOSTS) * slow).astype(np.int64)
        return [
            (b"host-%02d" % host, b'{"latency_ms":%d}' % latency, time_ms)
            for host, latency, time_ms in zip(hosts.tolist(), latencies.tolist(), times_ms, strict=True)
        ]


APPS = {"load-percentile": without_trades(Requests)}
