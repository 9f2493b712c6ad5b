"""Views of products, generated: a few products are viewed all the time, most of them rarely."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades

USERS = 5_000
# each minute has seconds in which nobody looks at anything
QUIET = range(40, 43)


class ProductViews(PerSecond):
    """`per_second` views (100) of `keys` products (300) per second of event time; none in three seconds of each minute."""

    topic = "product-views"
    per_second = 100
    stream = 7
    keys = 300

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        if second % 60 in QUIET:
            return []
        n = len(times_ms)
        products = np.minimum(random.zipf(1.3, n), self.number_of_keys).tolist()
        users = random.integers(0, USERS, n).tolist()
        return [
            (b"product-%03d" % product, b'{"user":"user-%04d"}' % user, time_ms)
            for product, user, time_ms in zip(products, users, times_ms, strict=True)
        ]


APPS = {"product-counter": without_trades(ProductViews), "product-views": without_trades(ProductViews)}
