"""What happens in a shoe store, generated: shipments, sales and returns. Some colors sell faster than they come."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades

COLORS = (b"black", b"brown", b"red", b"white", b"blue", b"green", b"silver", b"orange")
# of ten events, this many are of each kind; the pairs of each kind make up for it, but not for the last color
KINDS = (b"shipment", b"sale", b"sale", b"sale", b"sale", b"sale", b"sale", b"sale", b"sale", b"return")


class StoreEvents(PerSecond):
    """`per_second` events (50) per second of event time. Most are sales of a pair or two; the last color is oversold."""

    topic = "store-events"
    per_second = 50
    stream = 15

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        colors, kinds = random.integers(0, len(COLORS), n).tolist(), random.integers(0, len(KINDS), n).tolist()
        pairs, prices = random.integers(1, 3, n).tolist(), random.integers(2_000, 20_000, n).tolist()
        return [_record(*event) for event in zip(colors, kinds, pairs, prices, times_ms, strict=True)]


def _record(color: int, kind: int, pairs: int, cents: int, time_ms: int) -> Record:
    if KINDS[kind] == b"shipment":
        pairs = 12 if color < len(COLORS) - 1 else 4
    value = b'{"kind":"%b","color":"%b","count":%d,"price":%d.%02d}' % (
        KINDS[kind],
        COLORS[color],
        pairs,
        cents // 100,
        cents % 100,
    )
    return COLORS[color], value, time_ms


APPS = {"shoe-store": without_trades(StoreEvents)}
