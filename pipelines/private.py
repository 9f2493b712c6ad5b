"""What processes leave on the disk is their user's alone: folders 0700, files 0600."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)

# what new files and folders are without
UMASK = 0o077
# all that a state folder holds
_OURS = frozenset({
    "broker", "checkpoints", "code", "dagster", "data-docs", "demo", "demo-report.json", "evidence", "follower.jsonl", "jars",
    "logs", "run", "spark",
})  # fmt: skip


def keep_private() -> None:
    """Has this process, and all that it starts, make files and folders that others can't read."""
    os.umask(UMASK)


def private(folder: Path) -> Path:
    """Makes the state folder, 0700, and closes one to others that is there: then nobody gets to what older versions made.

    One with something else in it, as a home folder, or of another user stays as it is, with a warning.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if not stat.S_IMODE(found.st_mode) & UMASK:
        return folder
    if found.st_uid == os.geteuid() and {each.name for each in folder.iterdir()} <= _OURS:
        folder.chmod(0o700)
    else:
        log.warning("others may read the state folder %s: if it holds nothing else, chmod 700 it", folder)
    return folder
