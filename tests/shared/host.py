"""A host of drivers: a process whose drivers share one Spark session. A test kills it, and all of them die at once.

`python -m tests.shared.host FOLDER` starts the driver of each release whose name it reads from its standard input. It holds
each driver in the transaction of its second batch, and says so by an empty file. So a test kills each of them there, however
fast they are.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from pipelines.engine.batch_writer import BatchWriter
from pipelines.model.progress import Progress
from pipelines.settings import Settings
from tests.shared.session import shared_session
from tests.shared.threads import Threads

_ROOT = Path(__file__).resolve().parents[2]


class Host:
    """Launches drivers in a process of its own, which starts with the first of them."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self, release: str, *, force: bool = False, settle: bool = False) -> str:
        assert not force and not settle
        with self._lock:
            if self._process is None:
                with self.log_path(release).open("ab") as log:
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", "tests.shared.host", str(self._folder)],
                        cwd=_ROOT, env=self._settings.child_environment(),
                        stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                    )  # fmt: skip
            assert self._process.stdin is not None
            self._process.stdin.write(f"{release}\n".encode())
            self._process.stdin.flush()
        return f"a thread of process {self.pid}"

    def log_path(self, release: str) -> Path:
        return self._folder / "host.log"

    def holds(self, release: str) -> bool:
        """Whether the release has written its second batch, and can't commit it."""
        return _held(self._folder, release).exists()

    def kill(self) -> None:
        """Kills it with its JVM and its Python workers. The next driver starts another."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            assert self._process.returncode == -signal.SIGKILL, "it had ended before"
            self._process = None

    def end(self, timeout_s: float = 120) -> None:
        """Stops every driver at a boundary. Kills a process that doesn't end."""
        if self._process is not None:
            try:
                self._process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            self._process = None


def _held(folder: Path, release: str) -> Path:
    return folder / f"{release}.held"


def _hold_second_batches(folder: Path, ends: threading.Event) -> None:
    """Has each driver of this process wait before it commits its second batch, until `ends` is set."""
    commit = BatchWriter.commit_progress

    def held(self: BatchWriter, progress: Progress, offsets: Mapping[str, Mapping[int, int]] | None) -> None:
        if progress.boundary.batch_id == 1 and not ends.is_set():
            _held(folder, progress.release).touch()
            ends.wait()
        commit(self, progress, offsets)

    BatchWriter.commit_progress = held  # type: ignore[method-assign]


def main(folder: Path) -> None:
    # sets up the one session before any driver asks for it
    shared_session(folder, heap_mb=1_024, young_mb=384)
    drivers, ends = Threads(Settings()), threading.Event()
    _hold_second_batches(folder, ends)
    for line in sys.stdin:
        drivers.launch(line.strip())
    ends.set()
    drivers.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
