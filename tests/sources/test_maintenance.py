"""The signals that are generated: one device at a time fails, and one is silent."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

import pytest

from orchestration.sources import Faults, Options, source_for
from orchestration.sources.base import START_MS
from orchestration.sources.maintenance import FAILS_S, DeviceSignals


@pytest.mark.slow
def test_one_device_signals_twice_as_often_and_another_one_not_at_all() -> None:
    source = source_for("maintenance", Options(faults=Faults.none()))
    counts = Counter(
        (key, (time_ms - START_MS) // 1000 // FAILS_S)
        for key, _, time_ms in chain.from_iterable(islice(source.blocks(None), 2 * FAILS_S))
    )
    devices = DeviceSignals.keys
    usual = FAILS_S / devices
    for turn in range(2):
        fails, silent = (b"device-%02d" % ((turn + each) % devices) for each in (0, devices // 2))
        assert counts[silent, turn] == 0 and 1.5 * usual < counts[fails, turn] < 2.5 * usual
