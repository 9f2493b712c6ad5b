"""Actions of browsers, generated: people's, who act now and then, and programs', which act many times a second."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
PEOPLE = 4_000
# each of them acts for some seconds, and then is silent
PROGRAMS = 20
ACTIONS = (b"click", b"scroll", b"submit", b"open")


class BrowserActions:
    """`per_second` actions (100) per second of event time. A tenth is of the program that acts in this second."""

    topic = "browser-actions"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 100
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 11, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            people = random.integers(0, PEOPLE, n).tolist()
            by_program = (random.random(n) < 0.1).tolist()
            program = second // 10 % PROGRAMS
            kinds = random.integers(0, len(ACTIONS), n).tolist()
            records: list[Record] = [
                (_browser(PEOPLE + program if acts else person), b'{"action":"%b"}' % ACTIONS[kind], time_ms)
                for person, acts, kind, time_ms in zip(people, by_program, kinds, times_ms, strict=True)
            ]
            yield spoil(records, random, options.faults, malformed_json)


def _browser(number: int) -> bytes:
    """A hash, as of what a browser says of itself."""
    return b"%016x" % (number * 0x9E3779B97F4A7C15 % (1 << 64))


APPS = {"browser-windows": without_trades(BrowserActions)}
