"""Clicks of users on pages, their searches, and what is known of the users. Generated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
USERS = 2_000
# of users with a higher number nothing is known
KNOWN = 1_800
PAGES = 200
GENDERS = (b"female", b"male", b"other")
INTERESTS = (b"books", b"chess", b"films", b"gardens", b"music", b"running", b"sailing", b"travel")
ZIPS = 300
TERMS = 150
# clicks per second
CLICKS = 100


class Clicks:
    """`per_second` clicks (100) per second of event time. A few of 200 pages have most of them."""

    topic = "clicks"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or CLICKS
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 21, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            users = _users(options.seed, second, n)
            pages = np.minimum(random.zipf(1.3, n), PAGES).tolist()
            records: list[Record] = [
                (b"user-%04d" % user, b'{"page":"/page-%03d"}' % page, time_ms)
                for user, page, time_ms in zip(users, pages, times_ms, strict=True)
            ]
            yield spoil(records, random, options.faults, malformed_json)


class Profiles:
    """`per_second` profiles (50) per second of event time: each says all that is known of a user, or, one in 50, that
    nothing is any more.
    """

    topic = "profiles"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 50
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 22, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            users = random.integers(0, KNOWN, n).tolist()
            leaves = (random.random(n) < 0.02).tolist()
            records: list[Record] = [
                (b"user-%04d" % user, None if left else _profile(random), time_ms)
                for user, left, time_ms in zip(users, leaves, times_ms, strict=True)
            ]
            yield spoil(records, random, options.faults, malformed_json)


class Searches:
    """`per_second` searches (50) per second of event time: each by the user of a click of `Clicks`, as there are by default,
    0 to 2 s before it.
    """

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
            random = generator(options.seed, 23, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            soon = {after: _users(options.seed, second + after, CLICKS) for after in (0, 1)}
            wait = random.integers(0, 2, n).tolist()
            terms = np.minimum(random.zipf(1.3, n), TERMS).tolist()
            records: list[Record] = [
                # at the same part of its second as the click, so about 0 or 1 s before it
                (b"user-%04d" % soon[after][number * CLICKS // n], b'{"terms":"term-%03d"}' % term, time_ms)
                for number, (after, term, time_ms) in enumerate(zip(wait, terms, times_ms, strict=True))
            ]
            yield spoil(records, random, options.faults, malformed_json)


def _users(seed: int, second: int, n: int) -> list[int]:
    """Who clicks in a second, by which the searches go, too."""
    users: list[int] = generator(seed, 24, second).integers(0, USERS, n).tolist()
    return users


def _profile(random: np.random.Generator) -> bytes:
    interests = b",".join(b'"%b"' % each for each in INTERESTS if random.random() < 0.25)
    return b'{"age":%d,"gender":"%b","interests":[%b],"zip":"%05d"}' % (
        int(random.integers(16, 90)),
        GENDERS[int(random.integers(0, len(GENDERS)))],
        interests,
        10_000 + int(np.minimum(random.zipf(1.3), ZIPS)) * 97,
    )


_VIEWS = without_trades(Clicks), without_trades(Profiles)
APPS = {"page-stats": _VIEWS, "clickstream": (*_VIEWS, without_trades(Searches))}
