"""The actions that are generated: browsers that act now and then, and one at a time that acts all the time."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

from orchestration.sources import Faults, Options, source_for


def test_people_act_now_and_then_and_one_program_at_a_time_acts_all_the_time() -> None:
    source = source_for("browser-windows", Options(faults=Faults.none()))
    records = list(chain.from_iterable(islice(source.blocks(None), 30)))
    seconds = Counter((key, time_ms // 10_000) for key, _, time_ms in records)
    busy = [key for (key, _), actions in seconds.items() if actions > 40]
    assert len(busy) == len(set(busy)) == 3
    assert sorted(seconds.values())[len(seconds) // 2] <= 2
    assert all(key is not None and len(key) == 16 for key, _, _ in records)
