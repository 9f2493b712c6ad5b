"""What processes leave on disk belongs to their user alone: folders 0700, files 0600."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from pathlib import Path

log = logging.getLogger(__name__)

# permissions that new files and folders don't get
UMASK = 0o077
# everything that a state folder may hold
_OURS = frozenset({
    "broker", "checkpoints", "code", "dagster", "data-docs", "demo", "demo-report.json", "evidence", "follower.jsonl", "jars",
    "logs", "run", "spark", "spill", "store", "tables",
})  # fmt: skip


def keep_private() -> None:
    """Makes this process, and all that it starts, create files and folders that others can't read."""
    os.umask(UMASK)


def private(folder: Path) -> Path:
    """Creates the state folder or the folder of the store with 0700, or gives an existing one these permissions. They
    protect what older versions wrote, too.

    A folder that holds anything else, such as a home folder, or that belongs to another user, stays as it is; that is
    logged as a warning.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if not stat.S_IMODE(found.st_mode) & UMASK:
        return folder
    if found.st_uid == os.geteuid() and {each.name for each in folder.iterdir()} <= _OURS:
        folder.chmod(0o700)
    else:
        log.warning("other users may read %s: if it holds nothing but Switchyard's files, run chmod 700 on it", folder)
    return folder


def temporary_beside(path: Path) -> Path:
    """A path for the file that will replace `path`. No other process has it, even if one of another host has the same id."""
    return path.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}")


def write_private(root: Path, path: Path, data: bytes) -> None:
    """Writes a file below `root`, the state folder or that of the store, whole or not at all. Until then, readers see the
    old file.
    """
    private(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    temporary.touch(mode=0o600)
    temporary.write_bytes(data)
    os.replace(temporary, path)
