"""Signals of devices, generated: at a steady rate; but one device at a time gives twice as many, and another one none."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
DEVICES = 60
SIGNALS = (b"restart", b"dropped-packets", b"force")
SHARES = (0.1, 0.6, 0.3)
# for so long one device fails, and another one is silent
FAILS_S = 2 * 3600


class DeviceSignals:
    """`per_second` signals (1) of 60 devices per second of event time. A device is judged when it is known for a day, so ask
    for 200,000 records of history.
    """

    topic = "device-signals"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 1
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n = self._options, self._per_second
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 26, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            fails = second // FAILS_S % DEVICES
            silent = (fails + DEVICES // 2) % DEVICES
            devices = random.integers(0, DEVICES, n)
            # what the silent one would send comes from the one that fails
            devices[devices == silent] = fails
            kinds = random.choice(len(SIGNALS), n, p=SHARES).tolist()
            records: list[Record] = [
                (b"device-%02d" % device, b'{"signal":"%b"}' % SIGNALS[kind], time_ms)
                for device, kind, time_ms in zip(devices.tolist(), kinds, times_ms, strict=True)
            ]
            yield spoil(records, random, options.faults, malformed_json)


APPS = {"maintenance": without_trades(DeviceSignals)}
