"""Orders, generated: most are small, some are over $10,000, a few are exactly that."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades

CUSTOMERS = 500
SALES_PEOPLE = ("ada", "ben", "cleo", "dora", "emil", "fay", "gus", "hana")
THRESHOLD_CENTS = 1_000_000


class Orders(PerSecond):
    """`per_second` orders (200) per second of event time. About one in twenty is over $10,000."""

    topic = "orders"
    per_second = 200
    stream = 5

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        cents = np.maximum(1, np.rint(np.exp(random.normal(6.75, 1.5, n)) * 100)).astype(np.int64)
        # at the threshold, and a cent above and below it, where a mistake would hide
        edge = random.random(n) < 0.01
        cents[edge] = THRESHOLD_CENTS + random.integers(-1, 2, int(edge.sum()))
        return [
            (
                b"customer-%03d" % customer,
                b'{"order_id":"%010d","sales_person":"%b","amount":%d.%02d}'
                % (second * n + i, SALES_PEOPLE[customer % len(SALES_PEOPLE)].encode(), amount // 100, amount % 100),
                time_ms,
            )
            for i, (customer, amount, time_ms) in enumerate(
                zip(random.integers(0, CUSTOMERS, n).tolist(), cents.tolist(), times_ms, strict=True)
            )
        ]


APPS = {"large-orders": without_trades(Orders)}
