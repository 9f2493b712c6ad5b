"""How a process learns that it should stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from pipelines import signals
from pipelines.signals import StopSignal


def wait(stop: StopSignal, at_step: int) -> bool:
    """Waits for `stop`, which a handler sets before bytecode `at_step` of the wait. Returns whether there are so many."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename not in (signals.__file__, threading.__file__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps += 1
            if steps == at_step:
                # as Python does it: in the same thread, between two bytecodes
                stop.set()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        stop.wait(0.01)
    finally:
        sys.settrace(before)
    return steps >= at_step


@pytest.mark.timeout(20)
def test_a_handler_may_come_at_any_point_of_a_wait() -> None:
    stop, at_step = StopSignal(), 1
    while wait(stop, at_step):
        assert stop.is_set() and stop.wait(60)
        stop, at_step = StopSignal(), at_step + 1
    assert at_step > 10 and not stop.is_set()


@pytest.mark.timeout(20)
def test_a_wait_ends_at_a_signal_and_at_its_timeout() -> None:
    stop = StopSignal()
    restore = stop.take_signals()
    try:
        assert stop.wait(0.01) is False and not stop.is_set()
        killer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        killer.start()
        assert stop.wait(60) and stop.is_set()
        killer.join()
        # once it is set, no wait takes time
        assert stop.wait(60)
    finally:
        restore()
    assert signal.getsignal(signal.SIGTERM) is not None


@pytest.mark.timeout(20)
def test_it_wakes_every_thread_that_waits() -> None:
    stop, woken = StopSignal(), list[bool]()
    threads = [threading.Thread(target=lambda: woken.append(stop.wait(15))) for _ in range(3)]
    for thread in threads:
        thread.start()
    stop.set()
    for thread in threads:
        thread.join(10)
    assert woken == [True] * 3
