"""Waiting for what a test has begun: each wait has its time, after which the test fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_POLL_S = 0.1


class Deadline:
    """The time that a loop has: `check` fails with `what` after `timeout_s` seconds."""

    def __init__(self, what: str, timeout_s: float) -> None:
        self._what, self._timeout_s = what, timeout_s
        self._ends_at = time.monotonic() + timeout_s

    def check(self) -> None:
        if time.monotonic() > self._ends_at:
            raise AssertionError(f"{self._what}: not within {self._timeout_s:g} s")


def until(what: str, probe: Callable[[], Any], timeout_s: float, poll_s: float = _POLL_S) -> Any:
    """The first true value of `probe()`. After `timeout_s`, fails with `what`."""
    deadline = Deadline(what, timeout_s)
    while not (found := probe()):
        deadline.check()
        time.sleep(poll_s)
    return found
