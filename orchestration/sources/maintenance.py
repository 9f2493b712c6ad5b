"""Signals of devices, generated: at a steady rate; but one device at a time gives twice as many, and another one none."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades

SIGNALS = (b"restart", b"dropped-packets", b"force")
SHARES = (0.1, 0.6, 0.3)
# for so long one device fails, and another one is silent
FAILS_S = 2 * 3600


class DeviceSignals(PerSecond):
    """`per_second` signals (1) of `keys` devices (60) per second of event time. A device is judged when it is known for
    a day, so ask for 200,000 records of history.
    """

    topic = "device-signals"
    per_second = 1
    stream = 26
    keys = 60

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n, number = len(times_ms), self.number_of_keys
        fails = second // FAILS_S % number
        silent = (fails + number // 2) % number
        devices = random.integers(0, number, n)
        # what the silent one would send comes from the one that fails
        devices[devices == silent] = fails
        kinds = random.choice(len(SIGNALS), n, p=SHARES).tolist()
        return [
            (b"device-%02d" % device, b'{"signal":"%b"}' % SIGNALS[kind], time_ms)
            for device, kind, time_ms in zip(devices.tolist(), kinds, times_ms, strict=True)
        ]


APPS = {"maintenance": without_trades(DeviceSignals)}
