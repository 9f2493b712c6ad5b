"""Lines of text: the Python language reference, as it ships with Python."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import Options, PerSecond, Record, not_utf8, without_trades


class ReferenceLines(PerSecond):
    """The reference's lines, topic by topic, repeated forever: `per_second` (100) per second of event time."""

    topic = "lines"
    per_second = 100
    stream = 4

    def __init__(self, options: Options) -> None:
        from pydoc_data.topics import topics

        super().__init__(options)
        self._lines = [line.encode() for name in sorted(topics) for line in topics[name].splitlines() if line.strip()]

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n, lines = len(times_ms), self._lines
        return [(None, lines[(second * n + i) % len(lines)], time_ms) for i, time_ms in enumerate(times_ms)]

    def malform(self, value: bytes, number: int) -> bytes:
        return not_utf8(value, number)


APPS = {"word-count": without_trades(ReferenceLines)}
