"""Searches of users and their clicks on what they found, generated. A user clicks some seconds after the search."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import (
    Int64s,
    Options,
    Record,
    disorder,
    generator,
    malformed_json,
    spoil,
    without_trades,
)

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
USERS = 3_000
TERMS = 150
# results of each search
RESULTS = 30


def _searches(seed: int, second: int, n: int) -> tuple[Int64s, Int64s]:
    """Users and terms of the `n` searches of a second, by which the clicks go, too."""
    random = generator(seed, 14, second)
    return random.integers(0, USERS, n), np.minimum(random.zipf(1.3, n), TERMS).astype(np.int64)


class Searches:
    """`per_second` searches (50) per second of event time, of 3,000 users. A few of the 150 terms are in most."""

    topic = "searches"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 50
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 15, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            users, terms = _searches(options.seed, second, n)
            records: list[Record] = [
                (b"user-%04d" % user, b'{"terms":"term-%03d"}' % term, time_ms)
                for user, term, time_ms in zip(users.tolist(), terms.tolist(), times_ms, strict=True)
            ]
            yield spoil(records, random, options.faults, malformed_json)


class ResultClicks:
    """`per_second` clicks (50) per second of event time: each on a result of a search some seconds before, one in ten too long
    after it.
    """

    topic = "clicks"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 50
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 16, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            # a search of this many seconds before, at the same part of its second
            after_s = np.where(random.random(n) < 0.1, random.integers(6, 9, n), random.integers(1, 5, n)).tolist()
            asked = {back: _searches(options.seed, second - back, n) for back in set(after_s) if back <= second}
            ranks = np.minimum(random.zipf(1.5, n), RESULTS).tolist()
            records: list[Record] = []
            for number, (back, rank, time_ms) in enumerate(zip(after_s, ranks, times_ms, strict=True)):
                # there was no search before the first second
                users, terms = asked.get(back) or _searches(options.seed, second, n)
                page = b"term-%03d/result-%02d" % (terms[number], rank)
                records.append((b"user-%04d" % users[number], b'{"page":"%b"}' % page, time_ms))
            yield spoil(records, random, options.faults, malformed_json)


APPS = {"search-results": (without_trades(Searches), without_trades(ResultClicks))}
