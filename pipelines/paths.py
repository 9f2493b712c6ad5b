"""Paths under the state folder. No name from the registry can lead out of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from pipelines.errors import SwitchyardError


def below(root: Path, *parts: str) -> Path:
    """The path of `parts` under `root`; each part is one name. `root` itself may be a link, nothing under it may.

    The only way from data to a path. Raises SwitchyardError for a part that isn't a single name, such as `..` or an
    absolute path. Also if a link leads elsewhere, even inside the folder: that would be another release's.
    """
    for part in parts:
        if part in ("", ".", "..") or "/" in part or "\0" in part:
            raise SwitchyardError(
                f"{part!r} is not the name of a file in {root}",
                fix="run `switchyard log` to see who wrote it; nothing was read or deleted",
            )
    if not parts:
        raise SwitchyardError(f"no file or folder in {root} was named", fix="name one")
    home = root.resolve()
    path = home.joinpath(*parts)
    try:
        found = path.resolve()
    except RuntimeError:
        # a link to itself
        found = Path()
    if found != path:
        raise SwitchyardError(
            f"{root.joinpath(*parts)} is a link in the state folder, or is under one: it leads to {found}",
            fix="replace the link by the files; only the state folder itself (SWITCHYARD_STATE_DIR) may be a link",
        )
    return path


def remove(root: Path, *parts: str) -> None:
    """Deletes the folder of `parts` under `root` with its contents. A link in it is deleted, its target is not.

    A folder that is missing or can't be deleted is no error. Raises as `below` does.
    """
    shutil.rmtree(below(root, *parts), ignore_errors=True)
