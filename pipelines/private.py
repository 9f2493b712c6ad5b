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
    "logs", "run", "spark", "spill", "tables",
})  # fmt: skip


def keep_private() -> None:
    """Makes this process, and all that it starts, create files and folders that others can't read."""
    os.umask(UMASK)


def private(folder: Path) -> Path:
    """Creates the state folder, or that of the store, with 0700, or sets an existing one to that. It protects what older versions wrote, too.

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
        log.warning("other users may read the state folder %s: if it holds nothing else, run chmod 700 on it", folder)
    return folder


def write_private(root: Path, path: Path, data: bytes) -> None:
    """Writes a file in the state folder or the store `root`, whole or not at all: who reads meanwhile sees the file before."""
    private(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    # a process of another host may have the same id
    temporary = path.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}")
    temporary.touch(mode=0o600)
    temporary.write_bytes(data)
    os.replace(temporary, path)
