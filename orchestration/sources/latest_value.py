"""Values of keys, generated: a few keys change all the time, and some are deleted now and then."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades

KEYS = 500
# the share of records that delete their key
DELETES = 0.02


class Values(PerSecond):
    """`per_second` values (100) from 0 to 999 per second of event time, of 500 keys. One in 50 deletes its key instead."""

    topic = "values"
    per_second = 100
    stream = 10

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        keys = np.minimum(random.zipf(1.3, n), KEYS).tolist()
        values = random.integers(0, 1_000, n).tolist()
        deletes = (random.random(n) < DELETES).tolist()
        return [
            (b"key-%03d" % key, None if delete else b'{"value":%d}' % value, time_ms)
            for key, value, delete, time_ms in zip(keys, values, deletes, times_ms, strict=True)
        ]


APPS = {"latest-value": without_trades(Values)}
