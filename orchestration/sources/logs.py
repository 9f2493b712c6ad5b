"""Logs of applications, generated: also what browsers did, and who of them passed a captcha."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
BROWSERS = 300
LEVELS = ("DEBUG", "INFO", "INFO", "INFO", "INFO", "INFO", "WARN", "WARN", "ERROR", "FATAL")
LOGGERS = ("http", "db", "cache", "mailer", "billing")
# the loggers of what browsers did, and of captchas
ACTIONS, CAPTCHAS = "browser-actions", "captcha"


class Logs:
    """`per_second` logs (50) per second of event time: about half are browsers' actions, one in fifty is of a
    captcha. Every tenth browser fails all of its captchas, the others one in four.
    """

    topic = "logs"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 50
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            yield self._block(second)

    def _block(self, second: int) -> list[Record]:
        options, n = self._options, self._per_second
        random = generator(options.seed, 16, second)
        arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
        times_ms = disorder(arrives_ms, random, options.faults).tolist()
        kinds = random.random(n).tolist()
        browsers = np.minimum(random.zipf(1.4, n), BROWSERS).tolist()
        picks = random.integers(0, 1 << 30, n).tolist()
        records = [_record(*each) for each in zip(kinds, browsers, picks, times_ms, strict=True)]
        return spoil(records, random, options.faults, malformed_json)


def _record(kind: float, browser: int, pick: int, time_ms: int) -> Record:
    at = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    value: dict[str, Any] = {"appName": f"app-{pick % 7}", "thread": f"worker-{pick % 16}", "timestamp": at}
    if kind < 0.52:
        context = {"browserHash": f"browser-{browser:03}"}
        if kind < 0.02:
            passed = browser % 10 != 0 and pick % 4 != 0
            context |= {"passed": "true" if passed else "false"}
            value |= {"logger_name": CAPTCHAS, "message": "passed" if passed else "failed"}
        else:
            value |= {"logger_name": ACTIONS, "message": "clicked"}
        value |= {"level": "INFO", "context": context}
        return context["browserHash"].encode(), json.dumps(value).encode(), time_ms
    value |= {
        "level": LEVELS[pick % len(LEVELS)],
        "logger_name": LOGGERS[pick % len(LOGGERS)],
        "message": f"request {pick} took {pick % 900} ms",
    }
    return None, json.dumps(value | {"context": {"request": str(pick)}}).encode(), time_ms


APPS = {"log-router": without_trades(Logs), "captcha": without_trades(Logs)}
