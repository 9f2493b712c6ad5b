"""Another host: a process with pids of its own, as in a container or a clone of this machine, and a clock of its own.

`python -m tests.shared.another_host SHIFT_S`, with a clock that is `SHIFT_S` ahead, does what it reads from its standard
input, a line at a time, and says what came of it as a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from pipelines.settings import Settings

_ROOT = Path(__file__).resolve().parents[2]
_APART = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


class AnotherHost:
    """Such a process. `ahead_s`: how far its clock is ahead of this host's."""

    def __init__(self, settings: Settings, ahead_s: float = 0.0) -> None:
        self._process = subprocess.Popen(
            [*_APART, sys.executable, "-m", "tests.shared.another_host", str(ahead_s)],
            cwd=_ROOT, env=settings.child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> AnotherHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def asked(self, what: str, subject: str) -> Any:
        """What it says of `subject`: see `answers` in `main`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(what, subject, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        """Ends it as a power cut does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


def _shift(ahead_s: float) -> None:
    own_s, own_ns = time.time, time.time_ns
    time.time = lambda: own_s() + ahead_s
    time.time_ns = lambda: own_ns() + int(ahead_s * 1e9)


def main(ahead_s: float) -> None:
    # before anything takes a clock
    _shift(ahead_s)
    from orchestration.operations import journal
    from orchestration.operations.context import open_context
    from orchestration.operations.plans.plan import Plan
    from pipelines.engine.lease import take_lease
    from pipelines.errors import Refused

    context, kept = open_context(Settings()), ExitStack()

    def resume(plan_id: str) -> None:
        plan = Plan.from_journal(context.registry.state().operations[plan_id].opened)
        journal.begin(context, plan)
        # until its end it says that it lives
        kept.enter_context(journal._signs_of_life(context, plan_id))

    answers: dict[str, Any] = {
        "clock": lambda _: [time.time_ns() // 1_000_000, context.now_ms()],
        "holder": lambda name: context.holder(context.registry.state().releases[name]),
        "take": lambda name: take_lease(context.registry, name).token,
        "expire": lambda _: [*journal.expire(context.registry).operations],
        "resume": resume,
    }
    for line in sys.stdin:
        what, subject = line.split()
        try:
            answer = answers[what](subject)
        except Refused as refused:
            answer = f"refused: {refused.what}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
    # the signs of life end with the process
    os._exit(0)
