"""Paths under the state folder and the store. No name from the registry can lead out of them."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from pipelines.errors import SwitchyardError

_DELETED = ".deleted"


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
    path = below(root, *parts)
    # left when an earlier deletion failed
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{_DELETED}"):
        shutil.rmtree(left, ignore_errors=True)
    with suppress(OSError):
        path = set_aside(path)
    shutil.rmtree(path, ignore_errors=True)


def set_aside(path: Path) -> Path:
    """Gives a folder that is to be deleted a name to which nobody writes. Returns the path it has then.

    The executors of a driver that was killed write for up to two minutes more. A deletion under the old name would fail
    where they add a file.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_DELETED}")
    os.replace(path, aside)
    return aside


def move(source: Path, target: Path) -> None:
    """Gives the folder `source` the path `target`, which must be free. It is there whole or not at all, even if it has to be
    copied from another disk first. What can't be deleted of `source` then stays there.

    Raises SwitchyardError if `target` can't be written.
    """
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise _unwritten(target, error) from error
        _copy(source, target)
        shutil.rmtree(source, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        shutil.copytree(source, unfinished)
        for folder, _, files in os.walk(unfinished):
            for name in (*files, "."):
                _sync(Path(folder, name))
        os.replace(unfinished, target)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, OSError):
            raise _unwritten(target, error) from error
        raise


def _sync(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritten(target: Path, error: OSError) -> SwitchyardError:
    return SwitchyardError(
        f"{target} can't be written: {error.strerror or error}",
        fix=f"free some space on the disk of {target.parent}, or fix the permissions of that folder",
    )
