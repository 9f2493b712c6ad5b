"""The values that are generated: keys that change often, and keys that are deleted and come again."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import chain, islice, pairwise

from orchestration.sources import Faults, Options, source_for


def test_keys_change_and_some_are_deleted_and_come_again() -> None:
    source = source_for("latest-value", Options(faults=Faults.none()))
    records = list(chain.from_iterable(islice(source.blocks(None), 30)))
    values = defaultdict(list)
    for key, value, _ in records:
        values[key].append(value)
    assert Counter(value is None for _, value, _ in records)[True] in range(30, 100)
    assert any(before is None and after is not None for each in values.values() for before, after in pairwise(each))
    assert any(each[-1] is None for each in values.values())
    assert max(map(len, values.values())) > 500 and min(map(len, values.values())) == 1
