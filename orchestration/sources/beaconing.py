"""Connections of hosts, generated: people's, which come as they like, and programs', which come at intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orchestration.sources.base import PerSecond, Record, generator, without_trades

HOSTS = 60
DESTINATIONS = 400


@dataclass(frozen=True, slots=True)
class Program:
    """Contacts a destination each `interval_ms`, give or take the share `spread`."""

    host: int
    destination: str
    interval_ms: int
    spread: float


PROGRAMS = (
    # near-constant, and rare enough
    Program(3, "update.example.net", 60_000, 0.0),
    Program(7, "198.51.100.23", 30_000, 0.04),
    Program(11, "203.0.113.9", 45_500, 0.08),
    Program(19, "cdn.example.org", 25_000, 0.02),
    # not constant enough
    Program(23, "mail.example.net", 40_000, 0.4),
    Program(29, "news.example.org", 30_000, 0.25),
    # too often to be rare
    Program(31, "monitor.example.net", 5_000, 0.0),
    # too rarely to be sure
    Program(37, "backup.example.net", 300_000, 0.0),
)


class Connections(PerSecond):
    """`per_second` connections (50) of 60 hosts per second of event time, and those of eight programs, four of them beacons."""

    topic = "connections"
    per_second = 50
    stream = 8

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        # a few hosts and destinations have most connections
        hosts = np.minimum(random.zipf(1.5, n), HOSTS).tolist()
        destinations = np.minimum(random.zipf(1.2, n), DESTINATIONS).tolist()
        sizes = random.integers(200, 50_000, n).tolist()
        arriving = [
            (arrived, _record(host, f"site-{destination:03}.example.com", size, time_ms))
            for arrived, host, destination, size, time_ms in zip(
                self.arrivals_ms(second).tolist(), hosts, destinations, sizes, times_ms, strict=True
            )
        ]
        for number, program in enumerate(PROGRAMS):
            for time_ms in self._contacts(number, program, second):
                arriving.append((time_ms, _record(program.host, program.destination, 128, time_ms)))
        arriving.sort(key=lambda each: each[0])
        return [record for _, record in arriving]

    def _contacts(self, number: int, program: Program, second: int) -> Iterator[int]:
        """When program `number` contacts its destination in this second of the source."""
        near = second * 1000 // program.interval_ms
        for contact in range(max(0, near - 1), near + 2):
            # each is off by at most half of the spread, so an interval by at most all of it
            off = generator(self.options.seed, 9, number, contact).uniform(-0.5, 0.5) * program.spread
            time_ms = int((contact + 0.5 + off) * program.interval_ms)
            if time_ms // 1000 == second:
                yield self.start_ms + time_ms


def _record(host: int, destination: str, size: int, time_ms: int) -> Record:
    return b"host-%02d" % host, b'{"destination":"%b","bytes":%d}' % (destination.encode(), size), time_ms


APPS = {"beaconing": without_trades(Connections)}
