"""Actions of browsers, generated: people's, who act now and then, and programs', which act many times a second."""

from __future__ import annotations

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades

PEOPLE = 4_000
# each of them acts for some seconds, and then is silent
PROGRAMS = 20
ACTIONS = (b"click", b"scroll", b"submit", b"open")


class BrowserActions(PerSecond):
    """`per_second` actions (100) per second of event time. A tenth is of the program that acts in this second."""

    topic = "browser-actions"
    per_second = 100
    stream = 11

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        people = random.integers(0, PEOPLE, n).tolist()
        by_program = (random.random(n) < 0.1).tolist()
        program = second // 10 % PROGRAMS
        kinds = random.integers(0, len(ACTIONS), n).tolist()
        return [
            (_browser(PEOPLE + program if acts else person), b'{"action":"%b"}' % ACTIONS[kind], time_ms)
            for person, acts, kind, time_ms in zip(people, by_program, kinds, times_ms, strict=True)
        ]


def _browser(number: int) -> bytes:
    """A hash, as of what a browser says of itself."""
    return b"%016x" % (number * 0x9E3779B97F4A7C15 % (1 << 64))


APPS = {"browser-windows": without_trades(BrowserActions)}
