"""Events of items in stores, generated: small sales all the time, and a delivery now and then."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
STORES = 50
SKUS = 200
# about what 20 sales of 1 to 3 items take
DELIVERED = (20, 60)


class ItemEvents:
    """`per_second` events (100) per second of event time, of 50 stores with 200 SKUs each. One in 20 is a delivery."""

    topic = "item-events"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 100
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 13, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            stores = random.integers(0, STORES, n).tolist()
            skus = np.minimum(random.zipf(1.3, n), SKUS).tolist()
            delivered = random.random(n) < 0.05
            quantities = np.where(delivered, random.integers(*DELIVERED, n), -random.integers(1, 4, n)).tolist()
            records: list[Record] = [
                (b"store-%02d" % store, b'{"sku":"sku-%03d","quantity":%d}' % (sku, quantity), time_ms)
                for store, sku, quantity, time_ms in zip(stores, skus, quantities, times_ms, strict=True)
            ]
            yield spoil(records, random, options.faults, malformed_json)


APPS = {"store-inventory": without_trades(ItemEvents)}
