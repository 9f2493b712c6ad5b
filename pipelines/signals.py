"""How a process learns from its signal handler that it should stop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

_BY = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Whether this process was told to stop, and a wait that this ends.

    Not a `threading.Event`: its lock can't be taken twice. A handler that sets it while the same thread begins or ends a
    wait would stand still forever. `SimpleQueue.put` is made for handlers.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._woken: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Tells the process to stop. Any thread or signal handler may call it."""
        self._is_set = True
        self._woken.put(None)

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Waits until `set` is called, for at most `timeout_s` seconds. Returns whether it was called."""
        if not self._is_set:
            with suppress(Empty):
                # for other threads that wait, too
                self._woken.put(self._woken.get(timeout=timeout_s))
        return self._is_set

    def take_signals(self) -> Callable[[], None]:
        """SIGTERM and SIGINT call `set` from now on. Returns a function that restores the earlier handlers."""
        before: dict[signal.Signals, Any] = {each: signal.signal(each, lambda *_: self.set()) for each in _BY}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore
