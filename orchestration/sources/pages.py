"""Users who open and close a page, generated."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, not_utf8, without_trades

USERS = 5_000


class Opens(PerSecond):
    """`per_second` events (100) per second of event time: half of them `Open`, half `Close`. Some users are busier."""

    topic = "open"
    per_second = 100
    stream = 7

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        users = np.minimum(random.zipf(1.2, n), USERS).tolist()
        closes = (random.random(n) < 0.5).tolist()
        return [
            (b"user-%04d" % user, b"Close" if close else b"Open", time_ms)
            for user, close, time_ms in zip(users, closes, times_ms, strict=True)
        ]

    def malform(self, value: bytes, number: int) -> bytes:
        return not_utf8(value, number)


APPS = {"close-notifications": without_trades(Opens)}
