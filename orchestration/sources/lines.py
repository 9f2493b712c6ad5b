"""Lines of text: the Python language reference, as it ships with Python."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z


class ReferenceLines:
    """The reference's lines, topic by topic, repeated forever: `per_second` (100) per second of event time."""

    topic = "lines"
    partitions = 4

    def __init__(self, options: Options) -> None:
        from pydoc_data.topics import topics

        self._options = options
        self._per_second = options.per_second or 100
        self._lines = [line.encode() for name in sorted(topics) for line in topics[name].splitlines() if line.strip()]
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        options, n, lines = self._options, self._per_second, self._lines
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(options.seed, 4, second)
            arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
            times_ms = disorder(arrives_ms, random, options.faults).tolist()
            records: list[Record] = [
                (None, lines[(second * n + i) % len(lines)], time_ms) for i, time_ms in enumerate(times_ms)
            ]
            yield spoil(records, random, options.faults, _malformed_text)


def _malformed_text(value: bytes, number: int) -> bytes:
    """Not UTF-8."""
    return b"\xff\xfe" + value


APPS = {"word-count": without_trades(ReferenceLines)}
