"""What a Python worker on an executor finds there. It needs nothing but Python's standard library."""

from __future__ import annotations

import os
import platform
import secrets
import socket
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# workers of other versions of these read the rows of an app differently
_PACKAGES = ("pyspark", "pandas", "pyarrow", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """`versions`: of Python and packages, by name. `code`: a digest of Switchyard itself. `user`: the numeric id.
    `unread`, `unwritten`: why the file of the driver can't be read, and why none can be written beside it; None: it can.
    """

    host: str
    versions: dict[str, str]
    code: str
    user: int
    unread: str | None
    unwritten: str | None


def look(path: str, text: str) -> Facts:
    """The facts here. `path`: a file that the driver has written into the store, with the content `text`."""
    return Facts(
        host=socket.gethostname(),
        versions={"Python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        code=digest_of(Path(__file__).parents[1]),
        user=os.geteuid(),
        unread=_unread(Path(path), text),
        unwritten=_unwritten(Path(path)),
    )


@cache
def digest_of(package: Path) -> str:
    """A digest of the modules of `pipelines`, without the apps: an app's code comes from the store."""
    found = sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] != "apps":
            found.update(f"{name}\0{sha256(path.read_bytes()).hexdigest()}\0".encode())
    return found.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _unread(path: Path, text: str) -> str | None:
    try:
        return None if path.read_text() == text else "it has another content"
    except (OSError, ValueError) as error:
        return _told(error)


def _unwritten(path: Path) -> str | None:
    own = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        own.touch()
        own.unlink()
    except OSError as error:
        return _told(error)
    return None


def _told(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
