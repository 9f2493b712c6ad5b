"""Imports frozen code. It checks the digest first, and runs exactly the bytes that it checked.

Modules are imported from memory, so nothing can change between check and import. The zip is never on Python's path, where
a module added to it could shadow one of another package. A driver admits the code that the registry names. The Python
processes that Spark starts for it get digest and path from their environment (`worker/sitecustomize.py`).
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import ExecutionLoader
from importlib.machinery import ModuleSpec
from importlib.util import decode_source
from pathlib import Path, PurePosixPath
from types import ModuleType

from pipelines.errors import SwitchyardError

# a package name has 16 hexadecimal digits of the digest, 64 bits
_DIGEST_CHARS = 16
_PACKAGE = re.compile(rf"app_[0-9a-f]{{{_DIGEST_CHARS}}}")
_VARIABLE = "SWITCHYARD_CODE_"
# the folder of the `sitecustomize` that installs this guard in a Python process
WORKERS = Path(__file__).parent / "worker"
# the folder of the package `pipelines`
INSTALLATION = WORKERS.parents[2]
# set for a Python process that runs in the same installation as the driver
INSTALLED = "SWITCHYARD_WORKER_INSTALLED"
# what a Python process must send before it may ask for the state of an app
STATE_SECRET = "SWITCHYARD_STATE_SECRET"
_INIT = "__init__.py"


class CodeChanged(SwitchyardError):
    """Frozen code is missing, or is not what was staged. None of it was imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Frozen code whose digest was checked. `data`: the zip's bytes. `sources`: path within the package -> source."""

    digest: str
    path: Path
    data: bytes = field(repr=False)
    sources: Mapping[str, bytes] = field(repr=False)


def package_name(digest: str) -> str:
    """The name under which frozen code is imported. No working tree has a package of that name."""
    return f"app_{digest[:_DIGEST_CHARS]}"


def digest_of(sources: Mapping[str, bytes]) -> str:
    """SHA-256 of names and contents, hexadecimal, whatever the order of `sources`."""
    digest = hashlib.sha256()
    for name in sorted(sources, key=lambda name: PurePosixPath(name).parts):
        digest.update(f"{name}\0{len(sources[name])}\0".encode() + sources[name])
    return digest.hexdigest()


def sources_in(data: bytes, digest: str) -> dict[str, bytes] | None:
    """The sources in the bytes of a zip: path within the package -> source. None if it is not the code of `digest`."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            held = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
        found = {name.removeprefix(f"{package_name(digest)}/"): source for name, source in held}
        # an empty `__init__.py` is added if the folder has none
        without = {name: source for name, source in found.items() if name != _INIT or source}
        known = digest in (digest_of(found), digest_of(without))
    except Exception:  # a changed zip can fail in any way; then it is not this code
        return None
    within = all(name.startswith(f"{package_name(digest)}/") for name, _ in held)
    return found if known and within and len(found) == len(held) else None


def checked(path: Path, digest: str, of: str) -> Code:
    """The frozen code of `digest`, read once from `path`. `of`: its release, for messages.

    Raises CodeChanged if the file is missing, can't be read, or holds anything else.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise _gone(path, of) from None
    except OSError as error:
        raise CodeChanged(
            f"the frozen code of {of}, {path}, can't be read: {error.strerror}",
            fix="make it readable for the user who runs the driver",
        ) from error
    sources = sources_in(data, digest)
    if sources is None:
        raise CodeChanged(
            f"the frozen code of {of}, {path}, is not what was staged: it does not hold the code of digest {digest}",
            fix=f"none of it was run; restore the file from a backup, {_stage_again(of)}",
        )
    return Code(digest=digest, path=path, data=data, sources=sources)


# the model takes a quarter of a second to import, and a worker needs it only for these messages


def _gone(path: Path, of: str) -> CodeChanged:
    from pipelines.model.parts import Loss

    lost = Loss(release=of, part="frozen code", name=str(path))
    return CodeChanged(lost.what, fix=lost.way)


def _stage_again(of: str) -> str:
    from pipelines.model.parts import staging_code_again

    return staging_code_again(of)


def admit(path: Path, digest: str, of: str) -> Code:
    """Makes this process import `package_name(digest)` from what `checked` reads at `path`. Raises as it does."""
    code = checked(path, digest, of)
    known = _admitted.setdefault(package_name(digest), code)
    if known.digest != digest:
        raise CodeChanged(
            f"{path} has another digest than {known.path}, which this process has imported under the same package name",
            fix="use a separate process for each",
        )
    install()
    return code


def environment_for(path: Path, digest: str, of: str) -> dict[str, str]:
    """Environment variables that make a Python process admit this code at its first import, after `install` there.

    The process then imports nothing from the folder that it runs in.
    """
    return {f"{_VARIABLE}{package_name(digest)}": f"{digest} {of} {path}", "PYTHONSAFEPATH": "1"}


def install() -> None:
    """Makes this process import packages of frozen code only through the guard. A second call does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


# package name -> the code that this process may import under it
_admitted: dict[str, Code] = {}


class _Finder:
    """Finds modules of admitted code. Python looks nowhere else for a package of such a name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises CodeChanged as `checked` does."""
        package, _, rest = fullname.partition(".")
        if not _PACKAGE.fullmatch(package):
            return None
        code = _admitted.get(package) or _from_environment(package)
        module = rest.replace(".", "/")
        for name in (f"{module}/{_INIT}", f"{module}.py") if rest else (_INIT,):
            if code is not None and name in code.sources:
                return _spec(fullname, code, name)
        # returning None would let Python look elsewhere
        raise ModuleNotFoundError(f"no frozen code has a module {fullname}", name=fullname)


def _from_environment(package: str) -> Code | None:
    told = os.environ.get(f"{_VARIABLE}{package}")
    if told is None:
        return None
    digest, of, path = told.split(" ", 2)
    return admit(Path(path), digest, of)


def _spec(fullname: str, code: Code, name: str) -> ModuleSpec:
    file = f"{code.path}/{package_name(code.digest)}/{name}"
    package = PurePosixPath(name).name == _INIT
    # a package without a path: finders that search a path find no modules of it
    spec = ModuleSpec(fullname, _Loader(file, code.sources[name], package), origin=file, is_package=package)
    spec.has_location = True
    return spec


class _Loader(ExecutionLoader):
    """Runs a module from its source in memory. Tracebacks show that source."""

    def __init__(self, file: str, source: bytes, package: bool) -> None:
        self._file, self._source, self._package = file, source, package

    def get_filename(self, fullname: str) -> str:
        return self._file

    def get_source(self, fullname: str) -> str:
        return decode_source(self._source)

    def is_package(self, fullname: str) -> bool:
        return self._package
