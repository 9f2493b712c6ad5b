"""Compares what a consumer got with what the result should be.

A table is judged by its final fold and by steps that no stream of updates makes; a stream by the record that each
of its records came from, and by the order of these.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from demo.ledger.recompute import Expected, Key, Value

# averages are rounded to 6 decimals
TOLERANCE = 1.5e-6
SAMPLES = 5


class Delivered(NamedTuple):
    """One record as a consumer got it. `switch`: number in the alias's chain; `delta`: of a switch, not of a result."""

    key: Key
    value: Value | None
    topic: str
    partition: int
    offset: int
    switch: int = 0
    delta: bool = False
    source: str | None = None


@dataclass(kw_only=True)
class Ledger:
    """The verdict, in records (`wrong` and, of tables, `missing`: in keys).

    duplicates: delivered again; missing: never delivered; wrong: not the value that it should be, or not to be
    there at all; steps_back: a table went to an older value, or a stream's key out of order; late: keys not judged.
    """

    records: int = 0
    keys: int = 0
    duplicates: int = 0
    missing: int = 0
    wrong: int = 0
    steps_back: int = 0
    late: int = 0
    input_records: int = 0
    input_malformed: int = 0
    samples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not (self.duplicates or self.missing or self.wrong or self.steps_back)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "clean": self.clean}

    def count(self, defect: str, example: object) -> None:
        """One more `defect`; the first few are kept as samples."""
        setattr(self, defect, getattr(self, defect) + 1)
        kept = self.samples.setdefault(defect, [])
        if len(kept) < SAMPLES:
            kept.append(str(example))


def verify_table(delivered: Iterable[Delivered], expected: Expected, grows: str, falls: str | None = None) -> Ledger:
    """Folds the records by key and compares the fold with `expected`.

    Each update of a key counts at least one more input record, so `grows` must rise and `falls` must not. Only a
    switch's delta may step anywhere, once per key; and only a delta has tombstones.
    """
    ledger = _ledger(expected)
    fold: dict[Key, Value] = {}
    heard: dict[tuple[str, int], int] = {}
    in_delta: set[tuple[int, Key]] = set()
    for each in delivered:
        ledger.records += 1
        if each.delta:
            if (each.switch, each.key) in in_delta:
                ledger.count("duplicates", each)
            in_delta.add((each.switch, each.key))
            if each.value is None:
                fold.pop(each.key, None)
            else:
                fold[each.key] = each.value
            continue
        if each.offset <= heard.get((each.topic, each.partition), -1):
            ledger.count("duplicates", each)
            continue
        heard[each.topic, each.partition] = each.offset
        if each.value is None:
            ledger.count("steps_back", each)
            fold.pop(each.key, None)
            continue
        before = fold.get(each.key)
        if before is not None:
            if each.value == before:
                ledger.count("duplicates", each)
            elif each.value[grows] <= before[grows] or (falls is not None and each.value[falls] > before[falls]):
                ledger.count("steps_back", each)
        fold[each.key] = each.value
    ledger.keys = len(fold)
    for key, value in expected.values.items():
        if key in expected.late:
            continue
        if key not in fold:
            ledger.count("missing", key)
        elif not _same(value, fold[key]):
            ledger.count("wrong", f"{key}: {fold[key]}, should be {dict(value)}")
    for key in fold.keys() - expected.values.keys() - expected.late:
        ledger.count("wrong", f"{key}: {fold[key]}, should not be there")
    return ledger


def verify_stream(delivered: Iterable[Delivered], expected: Expected) -> Ledger:
    """Compares the records, by source, with `expected`; those of a key must come in the order of their sources."""
    ledger = _ledger(expected)
    seen: set[Key] = set()
    newest: dict[tuple[Key, str], int] = {}
    for each in delivered:
        ledger.records += 1
        if each.source is None:
            ledger.count("wrong", f"no source: {each}")
            continue
        source: Key = (each.source,)
        if source in seen:
            ledger.count("duplicates", each)
            continue
        seen.add(source)
        partition, _, offset = each.source.rpartition(":")
        if int(offset) < newest.get((each.key, partition), -1):
            ledger.count("steps_back", each)
        newest[each.key, partition] = max(int(offset), newest.get((each.key, partition), -1))
        value = expected.values.get(source)
        if value is None or each.value is None or each.key != expected.keys[source] or not _same(value, each.value):
            ledger.count("wrong", f"{each}, should be {value and dict(value)}")
    ledger.keys = len({key for key, _ in newest})
    for unseen in expected.values.keys() - seen:
        ledger.count("missing", unseen)
    return ledger


def count_gaps(
    ledger: Ledger, delivered: Iterable[Delivered], offsets: Mapping[tuple[str, int], Sequence[int]]
) -> None:
    """Adds to `missing` the records between the first and the last of a visit to a result that were not delivered.

    A visit is what one switch led to. `offsets`: of all committed records, ascending, by topic and partition.
    """
    visits: dict[tuple[int, str, int], list[int]] = {}
    for each in delivered:
        if not each.delta:
            visits.setdefault((each.switch, each.topic, each.partition), []).append(each.offset)
    for (switch, topic, partition), got in visits.items():
        there = offsets.get((topic, partition), ())
        between = there[bisect_left(there, min(got)) : bisect_right(there, max(got))]
        for offset in sorted(set(between) - set(got)):
            ledger.count("missing", f"{topic}:{partition}:{offset} of switch {switch}")


def json_key(raw: bytes | str | Mapping[str, Any]) -> Key:
    """`{"ticker": "IBM", "window_start": "..."}` -> its values, in order."""
    key = raw if isinstance(raw, Mapping) else json.loads(raw)
    return tuple(str(part) for part in key.values())


def json_value(raw: bytes | str | Mapping[str, Any] | None) -> Value | None:
    """An object, or None for a tombstone."""
    if raw is None or isinstance(raw, Mapping):
        return raw
    value: Value = json.loads(raw)
    return value


def _ledger(expected: Expected) -> Ledger:
    return Ledger(late=len(expected.late), input_records=expected.records, input_malformed=expected.malformed)


def _same(expected: Value, got: Value) -> bool:
    return all(name in got and _equal(value, got[name]) for name, value in expected.items())


def _equal(expected: Any, got: Any) -> bool:
    if isinstance(expected, float) and isinstance(got, int | float):
        return abs(expected - got) <= TOLERANCE
    return bool(expected == got)
