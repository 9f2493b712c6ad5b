"""Views of products, generated: a few products are viewed all the time, most of them rarely."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
PRODUCTS = 300
USERS = 5_000
# each minute has seconds in which nobody looks at anything
QUIET = range(40, 43)


class ProductViews:
    """`per_second` views (100) per second of event time; none in three seconds of each minute."""

    topic = "product-views"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 100
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            if second % 60 not in QUIET:
                yield self._block(second)

    def _block(self, second: int) -> list[Record]:
        options, n = self._options, self._per_second
        random = generator(options.seed, 7, second)
        arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
        times_ms = disorder(arrives_ms, random, options.faults).tolist()
        products = np.minimum(random.zipf(1.3, n), PRODUCTS).tolist()
        users = random.integers(0, USERS, n).tolist()
        records: list[Record] = [
            (b"product-%03d" % product, b'{"user":"user-%04d"}' % user, time_ms)
            for product, user, time_ms in zip(products, users, times_ms, strict=True)
        ]
        return spoil(records, random, options.faults, malformed_json)


APPS = {"product-counter": without_trades(ProductViews), "product-views": without_trades(ProductViews)}
