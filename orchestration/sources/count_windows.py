"""Numbers, generated: small whole numbers of keys, some of which have many."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades


class Numbers(PerSecond):
    """`per_second` numbers (100) from -50 to 99 per second of event time. Few of `keys` keys (200) have most of them."""

    topic = "numbers"
    per_second = 100
    stream = 6
    keys = 200

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        # the first keys have most of the numbers, the last ones not enough for a window for a long time
        keys = np.minimum(random.zipf(1.3, n), self.number_of_keys).tolist()
        numbers = random.integers(-50, 100, n).tolist()
        return [
            (b"series-%03d" % key, b'{"number":%d}' % number, time_ms)
            for key, number, time_ms in zip(keys, numbers, times_ms, strict=True)
        ]


APPS = {"count-windows": without_trades(Numbers)}
