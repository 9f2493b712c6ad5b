"""Orders, generated: most are small, some are over $10,000, a few are exactly that."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
CUSTOMERS = 500
SALES_PEOPLE = ("ada", "ben", "cleo", "dora", "emil", "fay", "gus", "hana")
THRESHOLD_CENTS = 1_000_000


class Orders:
    """`per_second` orders (200) per second of event time. About one in twenty is over $10,000."""

    topic = "orders"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 200
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            yield self._block(second)

    def _block(self, second: int) -> list[Record]:
        options, n = self._options, self._per_second
        random = generator(options.seed, 5, second)
        arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
        times_ms = disorder(arrives_ms, random, options.faults)
        cents = np.maximum(1, np.rint(np.exp(random.normal(6.75, 1.5, n)) * 100)).astype(np.int64)
        # at the threshold, and a cent above and below it, where a mistake would hide
        edge = random.random(n) < 0.01
        cents[edge] = THRESHOLD_CENTS + random.integers(-1, 2, int(edge.sum()))
        records: list[Record] = [
            (
                b"customer-%03d" % customer,
                b'{"order_id":"%010d","sales_person":"%b","amount":%d.%02d}'
                % (second * n + i, SALES_PEOPLE[customer % len(SALES_PEOPLE)].encode(), amount // 100, amount % 100),
                time_ms,
            )
            for i, (customer, amount, time_ms) in enumerate(
                zip(random.integers(0, CUSTOMERS, n).tolist(), cents.tolist(), times_ms.tolist(), strict=True)
            )
        ]
        return spoil(records, random, options.faults, malformed_json)


APPS = {"large-orders": without_trades(Orders)}
