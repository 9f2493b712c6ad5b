"""Paths under the state folder and the store. No name from the registry can lead out of them."""

from __future__ import annotations

import errno
import os
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
            f"{root.joinpath(*parts)} is a link in the folder {root}, or is under one: it leads to {found}",
            fix=f"replace the link by the files; only {root} itself may be a link",
        )
    return path


def remove(root: Path, *parts: str) -> None:
    """Deletes the folder of `parts` under `root` with its contents. A link in it is deleted, its target is not.

    A folder that is missing or can't be deleted is no error. Raises as `below` does.
    """
    shutil.rmtree(below(root, *parts), ignore_errors=True)


def move(source: Path, target: Path) -> None:
    """Gives the folder `source` the path `target`, which must be free. It is there whole or not at all, even if it has to be
    copied from another disk first.
    """
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        unfinished = target.with_name(f".{target.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(source, unfinished)
        os.replace(unfinished, target)
        shutil.rmtree(source)
