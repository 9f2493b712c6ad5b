"""Starts drivers as processes of this machine, in sessions of their own, so that they outlive whoever started them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

from pipelines.kafka.login import java_properties
from pipelines.paths import below
from pipelines.private import UMASK, private
from pipelines.settings import Settings

# Drivers that this process started and that still ran at the last look. Kept, because Popen warns when a running one is
# dropped. Polled at the next start, because only the parent can reap a child that has ended.
_started: list[subprocess.Popen[bytes]] = []


class Launcher(Protocol):
    """Where a driver runs."""

    def launch(self, release: str, *, force: bool = False, settle: bool = False) -> str:
        """Starts the driver of `release` and returns at once, with its place in words. `settle`: the driver only
        finishes a batch that is committed to Kafka but missing in Spark's log.
        """

    def log_path(self, release: str) -> Path | None:
        """The driver's log, if it is on this machine."""


class LocalLauncher:
    """Drivers as local processes, each in a folder of its own, from which Python imports nothing (-P)."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def launch(self, release: str, *, force: bool = False, settle: bool = False) -> str:
        process = self.spawn(release, force=force, settle=settle)
        _started[:] = [each for each in [*_started, process] if each.poll() is None]
        return f"process {process.pid}, log {self.log_path(release)}"

    def spawn(self, release: str, *, force: bool = False, settle: bool = False) -> subprocess.Popen[bytes]:
        """Starts the driver as the leader of its own process group. The caller must reap it.

        Raises BadUsage for a login that Spark can't use.
        """
        settings = self._settings.for_driver()
        # raises now what the driver would otherwise log a minute later
        java_properties(settings)
        folder = below(private(settings.state_dir), "run", release)
        folder.mkdir(parents=True, exist_ok=True)
        path = self.log_path(release)
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = [flag for flag, wanted in (("--force", force), ("--settle", settle)) if wanted]
        command = [sys.executable, "-P", "-m", "pipelines.engine.start", release, *flags]
        with path.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=folder,
                env=settings.environment_of_driver(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=UMASK,
            )

    def log_path(self, release: str) -> Path:
        return below(self._settings.state_dir, "logs", f"{release}.log")
