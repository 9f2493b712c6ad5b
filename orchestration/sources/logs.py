"""Logs of applications, generated: also what browsers did, and who of them passed a captcha."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades

LEVELS = ("DEBUG", "INFO", "INFO", "INFO", "INFO", "INFO", "WARN", "WARN", "ERROR", "FATAL")
LOGGERS = ("http", "db", "cache", "mailer", "billing")
# the loggers of what browsers did, and of captchas
ACTIONS, CAPTCHAS = "browser-actions", "captcha"


class Logs(PerSecond):
    """`per_second` logs (50) per second of event time: about half are browsers' actions, one in fifty is of a
    captcha. Every tenth of `keys` browsers (300) fails all of its captchas, the others one in four.
    """

    topic = "logs"
    per_second = 50
    stream = 16
    keys = 300

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        kinds = random.random(n).tolist()
        browsers = np.minimum(random.zipf(1.4, n), self.number_of_keys).tolist()
        picks = random.integers(0, 1 << 30, n).tolist()
        return [_record(*each) for each in zip(kinds, browsers, picks, times_ms, strict=True)]


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
