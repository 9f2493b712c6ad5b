"""Searches of users and their clicks on what they found, generated. A user clicks some seconds after the search."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import Int64s, PerSecond, Record, generator, without_trades

USERS = 3_000
# results of each search
RESULTS = 30


def _searches(seed: int, second: int, n: int, terms: int) -> tuple[Int64s, Int64s]:
    """Users and terms of the `n` searches of a second, by which the clicks go, too."""
    random = generator(seed, 14, second)
    return random.integers(0, USERS, n), np.minimum(random.zipf(1.3, n), terms).astype(np.int64)


class Searches(PerSecond):
    """`per_second` searches (50) per second of event time, of 3,000 users. A few of `keys` terms (150) are in most."""

    topic = "searches"
    per_second = 50
    stream = 15
    keys = 150

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        users, terms = _searches(self.options.seed, second, n, self.number_of_keys)
        return [
            (b"user-%04d" % user, b'{"terms":"term-%03d"}' % term, time_ms)
            for user, term, time_ms in zip(users.tolist(), terms.tolist(), times_ms, strict=True)
        ]


class ResultClicks(PerSecond):
    """`per_second` clicks (50) per second of event time: each on a result of a search some seconds before, one in ten too long
    after it.
    """

    topic = "clicks"
    per_second = 50
    stream = 16
    keys = 150

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        # a search of this many seconds before, at the same part of its second
        after_s = np.where(random.random(n) < 0.1, random.integers(6, 9, n), random.integers(1, 5, n)).tolist()
        seed, keys = self.options.seed, self.number_of_keys
        # there was no search before the first second
        asked = {back: _searches(seed, second - back if back <= second else second, n, keys) for back in set(after_s)}
        ranks = np.minimum(random.zipf(1.5, n), RESULTS).tolist()
        records: list[Record] = []
        for number, (back, rank, time_ms) in enumerate(zip(after_s, ranks, times_ms, strict=True)):
            users, terms = asked[back]
            page = b"term-%03d/result-%02d" % (terms[number], rank)
            records.append((b"user-%04d" % users[number], b'{"page":"%b"}' % page, time_ms))
        return records


APPS = {"search-results": (without_trades(Searches), without_trades(ResultClicks))}
