"""Numbers, generated: small whole numbers of keys, some of which have many."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
KEYS = 200


class Numbers:
    """`per_second` numbers (100) from -50 to 99 per second of event time. Few of the 200 keys have most of them."""

    topic = "numbers"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 100
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 6, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            # the first keys have most of the numbers, the last ones not enough for a window for a long time
            keys = np.minimum(random.zipf(1.3, n), KEYS).tolist()
            numbers = random.integers(-50, 100, n).tolist()
            records: list[Record] = [
                (b"series-%03d" % key, b'{"number":%d}' % number, time_ms)
                for key, number, time_ms in zip(keys, numbers, times_ms, strict=True)
            ]
            yield spoil(records, random, options.faults, malformed_json)


APPS = {"count-windows": without_trades(Numbers)}
