"""An embedded database (DuckDB) for the rows that a diff compares. What doesn't fit into its memory goes to files."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, TypeVar

from pipelines.errors import SwitchyardError
from pipelines.private import private
from pipelines.settings import Settings

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Answer = TypeVar("Answer")
# raises once the work must end
Check = Callable[[], None]

_LOCK = "lock"
# a folder this old has its lock, or an owner that is dead
_LOCKED_BY_NOW_S = 60.0
_INTERRUPT_S = 0.05
_LOOK_S = 0.5
# DuckDB has no other way to say that it may not use more of the disk
_NO_ROOM = "max_temp_directory_size"


class Interrupted(Exception):
    """The thread that waits for the work was interrupted."""


def with_database(settings: Settings, work: Callable[[DuckDBPyConnection, Path, Check], Answer]) -> Answer:
    """What `work` makes of an empty database. It also gets a folder in the state folder, which is deleted in the end, and a
    function that it must call now and then.

    The work runs on a thread of its own, with a driver's priority and number of cores: this thread can be interrupted at
    once. Raises SwitchyardError if the memory or the disk is full, or if files can't be written, and whatever `work` raises.
    """
    with _told(settings), _spill(settings) as folder, ThreadPoolExecutor(1, "diff") as thread:
        data = thread.submit(_connect, settings, folder).result()
        over = threading.Event()

        def check() -> None:
            if over.is_set():
                raise Interrupted

        done = thread.submit(work, data, folder, check)
        try:
            # Python looks for a signal only when a wait begins or ends: one that comes in between would be noticed at the end
            while not wait([done], _LOOK_S).done:
                pass
            return done.result()
        finally:
            # if this thread was interrupted; a query that begins after one call is ended by the next
            over.set()
            while not wait([done], _INTERRUPT_S).done:
                data.interrupt()
            thread.submit(data.close).result()


def _connect(settings: Settings, folder: Path) -> DuckDBPyConnection:
    import duckdb

    # of this thread, and of those that it starts: DuckDB's
    thread = threading.get_native_id()
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, max(settings.driver_nice, os.getpriority(os.PRIO_PROCESS, thread)))
    return duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{settings.diff_memory_mb}MiB",
            "threads": settings.driver_cores,
            "temp_directory": str(folder),
            # no order is promised, and to keep one takes memory
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )


@contextmanager
def _told(settings: Settings) -> Iterator[None]:
    """Says in words what is full, or can't be written."""
    import duckdb

    where = f"free some disk space at {settings.state_dir}"
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        if _NO_ROOM in str(error):
            what = f"there is no room on the disk to compare the results: {_line(error)}"
            raise SwitchyardError(what, fix=where) from error
        raise SwitchyardError(
            f"{settings.diff_memory_mb} MiB of memory is too little to compare the results",
            fix="raise SWITCHYARD_DIFF_MEMORY_MB, then repeat the command",
        ) from error
    except (duckdb.IOException, OSError) as error:
        raise SwitchyardError(
            f"the files of the comparison can't be written or read: {_line(error)}",
            fix=f"{where}, or fix the permissions there",
        ) from error


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@contextmanager
def _spill(settings: Settings) -> Iterator[Path]:
    """A folder for what doesn't fit into memory, which is deleted in the end. Deletes those of dead processes first."""
    root = private(settings.state_dir) / "spill"
    root.mkdir(mode=0o700, exist_ok=True)
    for each in root.iterdir():
        _delete_if_dead(each)
    folder = Path(mkdtemp(dir=root))
    # whoever holds it is alive; a child doesn't inherit it
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(lock)
        rmtree(folder, ignore_errors=True)


def _delete_if_dead(folder: Path) -> None:
    # another process may delete it at the same time
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime < _LOCKED_BY_NOW_S:
            return
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
