"""Ticks of users, beside the events by which they open and close a page. Generated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, spoil, without_trades
from orchestration.sources.pages import START_MS, USERS, Opens


class Ticks:
    """`per_second` ticks (100) per second of event time. One in 20 is of a user who never opens the page."""

    topic = "tick"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 100
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 8, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            users = np.minimum(random.zipf(1.2, n), USERS).tolist()
            guests = (random.random(n) < 0.05).tolist()
            records: list[Record] = [
                (b"%s-%04d" % (b"guest" if guest else b"user", user), b"tick", time_ms)
                for user, guest, time_ms in zip(users, guests, times_ms, strict=True)
            ]
            yield spoil(records, random, options.faults, _malformed)


def _malformed(value: bytes, number: int) -> bytes:
    return b"\xff\xfe" + value


_BOTH = without_trades(Ticks), without_trades(Opens)
# what an app reads of another one comes from the input of that one
APPS = {"not-viewing": _BOTH, "notification-counts": _BOTH}
