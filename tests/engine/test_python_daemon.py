"""The process that forks Python workers, as Spark uses it: it says nothing when Spark ends a worker early."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_a_worker_whose_task_is_cancelled_ends_without_a_traceback() -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-m", "pipelines.engine.python_daemon", "pyspark.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret"},
    )  # fmt: skip
    assert daemon.stdout is not None
    port = int.from_bytes(daemon.stdout.read(4), "big")
    with socket.create_connection(("127.0.0.1", port)) as spark:
        pid = int.from_bytes(spark.recv(4), "big")
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the worker does not end"
        time.sleep(0.02)
    # without its standard input, it ends
    _, errors = daemon.communicate(timeout=30)
    assert errors == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raised", "said"), [(BrokenPipeError(), None), (EOFError(), None), (ValueError("odd"), "odd")]
)
def test_only_the_end_of_the_connection_is_passed_over(
    raised: Exception, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.engine import python_daemon

    def worker(*_: object) -> int:
        raise raised

    monkeypatch.setattr(python_daemon.daemon, "worker", worker)
    python_daemon.install_quiet_end()
    quiet: Any = python_daemon.daemon.worker
    here, there = socket.socketpair()
    with here, there:
        if said is None:
            assert quiet(here, True) == 1
        else:
            with pytest.raises(ValueError, match=said):
                quiet(here, True)
