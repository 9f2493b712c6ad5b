"""Logs of applications: those of Kafka's brokers and of drivers, recorded, and generated ones of what browsers did."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import numpy as np

from orchestration.sources.base import Options, PerSecond, Record, without_trades

# level, logger_name, message and appName of 300 lines, in their order: of brokers and drivers of which some were killed
RECORDED = "platform_logs.json"
# the loggers of what browsers did, and of captchas
ACTIONS, CAPTCHAS = "browser-actions", "captcha"


class Logs(PerSecond):
    """`per_second` logs (50) per second of event time: about half are browsers' actions, one in fifty is of a captcha.
    The others are those of brokers and drivers, repeated forever. Every tenth of `keys` browsers (300) fails all of its
    captchas, the others one in four.
    """

    topic = "logs"
    per_second = 50
    stream = 16
    keys = 300

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._recorded: list[dict[str, str]] = json.loads(files(__package__).joinpath(RECORDED).read_text("utf-8"))

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        kinds = random.random(n).tolist()
        browsers = np.minimum(random.zipf(1.4, n), self.number_of_keys).tolist()
        picks = random.integers(0, 1 << 30, n).tolist()
        return [
            _of_browser(kind, browser, pick, time_ms) if kind < 0.52 else self._of_platform(second * n + i, time_ms)
            for i, (kind, browser, pick, time_ms) in enumerate(zip(kinds, browsers, picks, times_ms, strict=True))
        ]

    def _of_platform(self, number: int, time_ms: int) -> Record:
        line = self._recorded[number % len(self._recorded)]
        return None, json.dumps({**line, "timestamp": _text(time_ms), "context": {}}).encode(), time_ms


def _of_browser(kind: float, browser: int, pick: int, time_ms: int) -> Record:
    context = {"browserHash": f"browser-{browser:03}"}
    value: dict[str, Any] = {
        "level": "INFO", "appName": f"app-{pick % 7}", "thread": f"worker-{pick % 16}", "timestamp": _text(time_ms),
    }  # fmt: skip
    if kind < 0.02:
        passed = browser % 10 != 0 and pick % 4 != 0
        context |= {"passed": "true" if passed else "false"}
        value |= {"logger_name": CAPTCHAS, "message": "passed" if passed else "failed"}
    else:
        value |= {"logger_name": ACTIONS, "message": "clicked"}
    return context["browserHash"].encode(), json.dumps(value | {"context": context}).encode(), time_ms


def _text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


APPS = {"log-router": without_trades(Logs), "captcha": without_trades(Logs)}
