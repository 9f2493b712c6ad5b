"""Clicks of users on pages, their searches, and what is known of the users. Generated."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, generator, without_trades

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


class Clicks(PerSecond):
    """`per_second` clicks (100) per second of event time. A few of 200 pages have most of them."""

    topic = "clicks"
    per_second = CLICKS
    stream = 21

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        users = _users(self.options.seed, second, n)
        pages = np.minimum(random.zipf(1.3, n), PAGES).tolist()
        return [
            (b"user-%04d" % user, b'{"page":"/page-%03d"}' % page, time_ms)
            for user, page, time_ms in zip(users, pages, times_ms, strict=True)
        ]


class Profiles(PerSecond):
    """`per_second` profiles (50) per second of event time: each says all that is known of a user, or, one in 50, that
    nothing is any more.
    """

    topic = "profiles"
    per_second = 50
    stream = 22

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        users = random.integers(0, KNOWN, n).tolist()
        leaves = (random.random(n) < 0.02).tolist()
        return [
            (b"user-%04d" % user, None if left else _profile(random), time_ms)
            for user, left, time_ms in zip(users, leaves, times_ms, strict=True)
        ]


class Searches(PerSecond):
    """`per_second` searches (50) per second of event time: each by the user of a click of `Clicks`, as there are by default,
    0 to 2 s before it.
    """

    topic = "searches"
    per_second = 50
    stream = 23

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        soon = {after: _users(self.options.seed, second + after, CLICKS) for after in (0, 1)}
        wait = random.integers(0, 2, n).tolist()
        terms = np.minimum(random.zipf(1.3, n), TERMS).tolist()
        return [
            # at the same part of its second as the click, so about 0 or 1 s before it
            (b"user-%04d" % soon[after][number * CLICKS // n], b'{"terms":"term-%03d"}' % term, time_ms)
            for number, (after, term, time_ms) in enumerate(zip(wait, terms, times_ms, strict=True))
        ]


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
