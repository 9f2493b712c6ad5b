"""Events of items in stores, generated: small sales all the time, and a delivery now and then."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades

SKUS = 200
# about what 20 sales of 1 to 3 items take
DELIVERED = (20, 60)


class ItemEvents(PerSecond):
    """`per_second` events (100) per second of event time, of `keys` stores (50) with 200 SKUs each. One in 20 is a delivery."""

    topic = "item-events"
    per_second = 100
    stream = 13
    keys = 50

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        stores = random.integers(0, self.number_of_keys, n).tolist()
        skus = np.minimum(random.zipf(1.3, n), SKUS).tolist()
        delivered = random.random(n) < 0.05
        quantities = np.where(delivered, random.integers(*DELIVERED, n), -random.integers(1, 4, n)).tolist()
        return [
            (b"store-%02d" % store, b'{"sku":"sku-%03d","quantity":%d}' % (sku, quantity), time_ms)
            for store, sku, quantity, time_ms in zip(stores, skus, quantities, times_ms, strict=True)
        ]


APPS = {"store-inventory": without_trades(ItemEvents)}
