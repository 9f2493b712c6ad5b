"""Ticks of users, beside the events by which they open and close a page. Generated."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, not_utf8, without_trades
from orchestration.sources.pages import USERS, Opens


class Ticks(PerSecond):
    """`per_second` ticks (100) per second of event time. One in 20 is of a user who never opens the page."""

    topic = "tick"
    per_second = 100
    stream = 8

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        users = np.minimum(random.zipf(1.2, n), USERS).tolist()
        guests = (random.random(n) < 0.05).tolist()
        return [
            (b"%s-%04d" % (b"guest" if guest else b"user", user), b"tick", time_ms)
            for user, guest, time_ms in zip(users, guests, times_ms, strict=True)
        ]

    def malform(self, value: bytes, number: int) -> bytes:
        return not_utf8(value, number)


_BOTH = without_trades(Ticks), without_trades(Opens)
# what an app reads of another one comes from the input of that one
APPS = {"not-viewing": _BOTH, "notification-counts": _BOTH}
