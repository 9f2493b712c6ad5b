"""Paths under the state folder: what the registry names never leads out of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipelines.errors import SwitchyardError


def below(root: Path, *parts: str) -> Path:
    """The path of `parts` under `root`, of which each is one name. `root` itself may be a link, nothing under it may.

    The only way from data to a path: raises SwitchyardError for a part that is not one name, as `..` or an absolute path,
    and where a link leads elsewhere, inside the folder too: that would be another release's.
    """
    for part in parts:
        if part in ("", ".", "..") or "/" in part or "\0" in part:
            raise SwitchyardError(
                f"{part!r} is not the name of a file in {root}",
                fix="`switchyard log` says who entered it; nothing was read or deleted",
            )
    if not parts:
        raise SwitchyardError(f"nothing is named in {root}", fix="name a file or folder in it")
    home = root.resolve()
    path = home.joinpath(*parts)
    try:
        found = path.resolve()
    except RuntimeError:
        # a link to itself
        found = Path()
    if found != path:
        raise SwitchyardError(
            f"{root.joinpath(*parts)} is a link, or below one, in the state folder: it leads to {found}",
            fix="put the files there instead of the link; the state folder itself (SWITCHYARD_STATE_DIR) may be a link",
        )
    return path


def remove(root: Path, *parts: str) -> None:
    """Deletes the folder of `parts` under `root` with all that is in it; a link in it goes, what it leads to stays.

    Gone already, or not to be deleted: left as it is. Raises as `below` does.
    """
    shutil.rmtree(below(root, *parts), ignore_errors=True)
