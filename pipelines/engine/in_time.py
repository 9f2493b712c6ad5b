"""Calls that may hang, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import Any, TypeVar

Answer = TypeVar("Answer")

POLL_S = 0.5


class Late(Exception):
    """The time is up."""


class Failed(Exception):
    """A job has raised `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def in_time(job: Callable[[], Answer], until: float, check: Callable[[], object] = lambda: None) -> Answer:
    """What `job` returns. Raises Failed if it fails, Late if it does not end by `until`, on the clock of `monotonic`; it is
    left behind. Raises what `check` does meanwhile, which is called twice a second.
    """
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(job())
        except Exception as error:
            done.set_exception(Failed(error))

    Thread(target=run, name="in time", daemon=True).start()
    while not done.done():
        check()
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise Late
        wait([done], min(POLL_S, left_s))
    answer: Answer = done.result()
    return answer
