"""Connections of hosts, generated: people's, which come as they like, and programs', which come at intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
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


class Connections:
    """`per_second` connections (50) of 60 hosts per second of event time, and those of eight programs, four of them beacons."""

    topic = "connections"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 50
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            yield self._block(second)

    def _block(self, second: int) -> list[Record]:
        options, n = self._options, self._per_second
        random = generator(options.seed, 8, second)
        arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
        times_ms = disorder(arrives_ms, random, options.faults).tolist()
        # a few hosts and destinations have most connections
        hosts = np.minimum(random.zipf(1.5, n), HOSTS).tolist()
        destinations = np.minimum(random.zipf(1.2, n), DESTINATIONS).tolist()
        sizes = random.integers(200, 50_000, n).tolist()
        arriving = [
            (arrived, _record(host, f"site-{destination:03}.example.com", size, time_ms))
            for arrived, host, destination, size, time_ms in zip(
                arrives_ms.tolist(), hosts, destinations, sizes, times_ms, strict=True
            )
        ]
        for number, program in enumerate(PROGRAMS):
            for time_ms in self._contacts(number, program, second):
                arriving.append((time_ms, _record(program.host, program.destination, 128, time_ms)))
        arriving.sort(key=lambda each: each[0])
        return spoil([record for _, record in arriving], random, options.faults, malformed_json)

    def _contacts(self, number: int, program: Program, second: int) -> Iterator[int]:
        """When program `number` contacts its destination in this second of the source."""
        near = second * 1000 // program.interval_ms
        for contact in range(max(0, near - 1), near + 2):
            # each is off by at most half of the spread, so an interval by at most all of it
            off = generator(self._options.seed, 9, number, contact).uniform(-0.5, 0.5) * program.spread
            time_ms = int((contact + 0.5 + off) * program.interval_ms)
            if time_ms // 1000 == second:
                yield self.start_ms + time_ms


def _record(host: int, destination: str, size: int, time_ms: int) -> Record:
    return b"host-%02d" % host, b'{"destination":"%b","bytes":%d}' % (destination.encode(), size), time_ms


APPS = {"beaconing": without_trades(Connections)}
