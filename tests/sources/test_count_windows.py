"""The numbers that are generated: keys with many windows, with one, and with none."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

from orchestration.sources import Faults, Options, source_for


def test_some_keys_have_many_numbers_and_some_too_few_for_a_window() -> None:
    source = source_for("count-windows", Options(faults=Faults.none()))
    keys = Counter(key for key, _, _ in chain.from_iterable(islice(source.blocks(None), 30)))
    assert sum(keys.values()) == 3_000
    counts = sorted(keys.values())
    assert counts[-1] > 500 and counts[0] < 3 and 3 in counts
