"""Runs a processor in this process, with its state and timers in memory: an app's Python without Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd

Row = Mapping[str, Any]


class Value:
    """A value state of one key."""

    def __init__(self) -> None:
        self.value: Any = None

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        self.value = value

    def clear(self) -> None:
        self.value = None


class Memory:
    """What Spark keeps for a processor. `make`: makes one, as each batch has a new one. `by`: the key's column."""

    def __init__(self, make: Callable[[], Any], by: str) -> None:
        self._make, self._by = make, by
        self.states: dict[str, dict[str, Value]] = defaultdict(lambda: defaultdict(Value))
        self._timers: dict[str, set[int]] = defaultdict(set)

    def run(self, rows: Sequence[Row], watermark_ms: int | None = None) -> list[dict[str, Any]]:
        """What the processor tells of a batch, and then of the timers that `watermark_ms` has reached."""
        found: list[dict[str, Any]] = []
        times = SimpleNamespace(getCurrentWatermarkInMs=lambda: watermark_ms)
        by_key: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_key[row[self._by]].append(row)
        for key, each in by_key.items():
            found += _told(self._processor(key).handleInputRows((key,), _frames(each), times))
        for key, timers in self._timers.items():
            for timer in sorted(t for t in timers if watermark_ms is not None and t <= watermark_ms):
                timers.discard(timer)
                expired = SimpleNamespace(getExpiryTimeInMs=lambda timer=timer: timer)
                found += _told(self._processor(key).handleExpiredTimer((key,), times, expired))
        return found

    def _processor(self, key: str) -> Any:
        processor = self._make()
        processor.init(
            SimpleNamespace(getValueState=lambda name, _: self.states[key][name], registerTimer=self._timers[key].add)
        )
        return processor


def _frames(rows: Sequence[Row]) -> Iterator[pd.DataFrame]:
    """As Spark may hand them over: in several frames, in any order."""
    frame = pd.DataFrame(rows[::-1])
    return iter([frame[2:], frame[:2]] if len(frame) > 2 else [frame])


def _told(frames: Iterator[pd.DataFrame]) -> Iterator[dict[str, Any]]:
    return (row for frame in frames for row in frame.to_dict("records"))
