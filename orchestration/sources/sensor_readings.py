"""Readings of devices, generated: in turns, one of them was offline, and delivers what it measured hours or weeks before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
DEVICES = 100
# every so many seconds, another device delivers so many readings, one for each minute that ended so many hours before
DELIVERS_EVERY_S = 20
DELIVERED = 10
HOURS_BEFORE = (0.5, 2.5, 2.95, 4, 26, 510)


class Readings:
    """`per_second` readings (50) of 100 devices per second of event time, and old ones of one device every 20 s."""

    topic = "readings"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 50
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 20, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            devices = random.integers(0, DEVICES, n).tolist()
            records = [_record(*each, random) for each in zip(devices, times_ms, strict=True)]
            if second % DELIVERS_EVERY_S == DELIVERS_EVERY_S - 1:
                delivery = second // DELIVERS_EVERY_S
                end_ms = int(arrives_ms[-1]) - int(HOURS_BEFORE[delivery % len(HOURS_BEFORE)] * 3_600_000)
                old = range(end_ms - DELIVERED * 60_000, end_ms, 60_000)
                records += [_record(delivery % DEVICES, time_ms, random) for time_ms in old]
            yield spoil(records, random, options.faults, malformed_json)


def _record(device: int, time_ms: int, random: np.random.Generator) -> Record:
    """A temperature. Each device has its own, and all have one of the day."""
    value = 15 + device % 10 + 5 * np.sin(2 * np.pi * time_ms / 86_400_000) + random.normal(0, 0.5)
    return b"device-%03d" % device, b'{"value":%.2f}' % value, time_ms


APPS = {"sensor-readings": without_trades(Readings)}
