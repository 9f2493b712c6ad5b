"""Values of keys, generated: a few keys change all the time, and some are deleted now and then."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
KEYS = 500
# the share of records that delete their key
DELETES = 0.02


class Values:
    """`per_second` values (100) from 0 to 999 per second of event time, of 500 keys. One in 50 deletes its key instead."""

    topic = "values"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 100
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 10, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            keys = np.minimum(random.zipf(1.3, n), KEYS).tolist()
            values = random.integers(0, 1_000, n).tolist()
            deletes = (random.random(n) < DELETES).tolist()
            records: list[Record] = [
                (b"key-%03d" % key, None if delete else b'{"value":%d}' % value, time_ms)
                for key, value, delete, time_ms in zip(keys, values, deletes, times_ms, strict=True)
            ]
            yield spoil(records, random, options.faults, malformed_json)


APPS = {"latest-value": without_trades(Values)}
