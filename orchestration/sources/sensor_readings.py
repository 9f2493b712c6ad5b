"""Readings of devices, generated: in turns, one of them was offline, and delivers what it measured hours or weeks before."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades

# every so many seconds, another device delivers so many readings, one for each minute that ended so many hours before
DELIVERS_EVERY_S = 20
DELIVERED = 10
HOURS_BEFORE = (0.5, 2.5, 2.95, 4, 26, 510)


class Readings(PerSecond):
    """`per_second` readings (50) of `keys` devices (100) per second of event time, and old ones of one device every 20 s."""

    topic = "readings"
    per_second = 50
    stream = 20
    keys = 100

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        devices = random.integers(0, self.number_of_keys, n).tolist()
        records = [_record(*each, random) for each in zip(devices, times_ms, strict=True)]
        if second % DELIVERS_EVERY_S == DELIVERS_EVERY_S - 1:
            delivery = second // DELIVERS_EVERY_S
            end_ms = int(self.arrivals_ms(second)[-1]) - int(HOURS_BEFORE[delivery % len(HOURS_BEFORE)] * 3_600_000)
            old = range(end_ms - DELIVERED * 60_000, end_ms, 60_000)
            records += [_record(delivery % self.number_of_keys, time_ms, random) for time_ms in old]
        return records


def _record(device: int, time_ms: int, random: np.random.Generator) -> Record:
    """A temperature. Each device has its own, and all have one of the day."""
    value = 15 + device % 10 + 5 * np.sin(2 * np.pi * time_ms / 86_400_000) + random.normal(0, 0.5)
    return b"device-%03d" % device, b'{"value":%.2f}' % value, time_ms


APPS = {"sensor-readings": without_trades(Readings)}
