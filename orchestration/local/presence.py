"""Which supervisors run on this host, by files that they write. Tells an operation whether a dead driver will be
replaced.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from orchestration.local.process import ProcessRef
from pipelines.private import private
from pipelines.settings import Settings

# Dagster's sensor has a turn every 10 s, and may be late
_FRESH_S = 60.0


def say_present(settings: Settings) -> None:
    """Records that this process supervises the releases of this host. A supervisor calls it in each turn."""
    folder = _folder(settings)
    if not folder.is_dir():
        private(settings.state_dir)
        folder.mkdir(parents=True, exist_ok=True)
    this = ProcessRef.of(os.getpid())
    if this is not None:
        this.write(folder / f"{this.pid}.json")


def say_gone(settings: Settings) -> None:
    """Records that this process no longer supervises."""
    (_folder(settings) / f"{os.getpid()}.json").unlink(missing_ok=True)


def is_supervised(settings: Settings) -> bool:
    """Whether a living supervisor on this host has had a turn in the last minute."""
    now = time.time()
    for path in _folder(settings).glob("*.json"):
        process = ProcessRef.read(path)
        if process is not None and process.alive() and now - path.stat().st_mtime < _FRESH_S:
            return True
    return False


def _folder(settings: Settings) -> Path:
    return settings.state_dir / "run" / "supervisors"
