"""Users who open and close a page, generated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
USERS = 5_000


class Opens:
    """`per_second` events (100) per second of event time: half of them `Open`, half `Close`. Some users are busier."""

    topic = "open"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 100
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 7, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            users = np.minimum(random.zipf(1.2, n), USERS).tolist()
            closes = (random.random(n) < 0.5).tolist()
            records: list[Record] = [
                (b"user-%04d" % user, b"Close" if close else b"Open", time_ms)
                for user, close, time_ms in zip(users, closes, times_ms, strict=True)
            ]
            yield spoil(records, random, options.faults, _malformed)


def _malformed(value: bytes, number: int) -> bytes:
    return b"\xff\xfe" + value


APPS = {"close-notifications": without_trades(Opens)}
