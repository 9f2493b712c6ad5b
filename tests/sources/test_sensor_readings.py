"""The readings that are generated: some come hours late, and some weeks."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

from orchestration.sources import Faults, Options, source_for


def test_devices_deliver_readings_that_are_in_time_and_too_late() -> None:
    source = source_for("sensor-readings", Options(faults=Faults.none()))
    newest: dict[bytes | None, int] = {}
    late: Counter[int] = Counter()
    for device, _, time_ms in chain.from_iterable(islice(source.blocks(None), 240)):
        newest[device] = max(newest.get(device, 0), time_ms)
        late[(newest[device] - time_ms) // 3_600_000] += 1
    assert late[0] > 50 * 240 and late[2] >= 20
    # more than three weeks
    assert sum(late[hours] for hours in late if hours >= 3) >= 40 and max(late) > 21 * 24
