"""What happens in a shoe store, generated: shipments, sales and returns. Some colors sell faster than they come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
COLORS = (b"black", b"brown", b"red", b"white", b"blue", b"green", b"silver", b"orange")
# of ten events, this many are of each kind; the pairs of each kind make up for it, but not for the last color
KINDS = (b"shipment", b"sale", b"sale", b"sale", b"sale", b"sale", b"sale", b"sale", b"sale", b"return")


class StoreEvents:
    """`per_second` events (50) per second of event time. Most are sales of a pair or two; the last color is oversold."""

    topic = "store-events"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 50
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            yield self._block(second)

    def _block(self, second: int) -> list[Record]:
        options, n = self._options, self._per_second
        random = generator(options.seed, 15, second)
        arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
        times_ms = disorder(arrives_ms, random, options.faults).tolist()
        colors, kinds = random.integers(0, len(COLORS), n).tolist(), random.integers(0, len(KINDS), n).tolist()
        pairs, prices = random.integers(1, 3, n).tolist(), random.integers(2_000, 20_000, n).tolist()
        records = [_record(*event) for event in zip(colors, kinds, pairs, prices, times_ms, strict=True)]
        return spoil(records, random, options.faults, malformed_json)


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
