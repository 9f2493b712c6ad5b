"""The import of frozen code: its digest is checked first, and the bytes that were checked are the bytes that run.

Modules come from memory. So nothing can change between check and import, and the archive is never on Python's path,
where a module that someone puts into it would shadow one of another package. A driver admits the code that the registry
names; the Python processes that Spark starts for it get digest and path by their environment (`worker/sitecustomize.py`).
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

# digests that Python names can carry; 16 hexadecimal digits: 64 bits
_DIGEST_CHARS = 16
_PACKAGE = re.compile(rf"app_[0-9a-f]{{{_DIGEST_CHARS}}}")
_VARIABLE = "SWITCHYARD_CODE_"
# the folder of the `sitecustomize` that has a Python process import frozen code by this module
WORKERS = Path(__file__).parent / "worker"
_INIT = "__init__.py"


class CodeChanged(SwitchyardError):
    """Frozen code is gone, or is not what was staged. None of it was imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Frozen code whose digest was checked. `data`: the archive's bytes; `sources`: path within the package -> source."""

    digest: str
    path: Path
    data: bytes = field(repr=False)
    sources: Mapping[str, bytes] = field(repr=False)


def package_name(digest: str) -> str:
    """The import name of frozen code: no working tree has a package of that name."""
    return f"app_{digest[:_DIGEST_CHARS]}"


def digest_of(sources: Mapping[str, bytes]) -> str:
    """SHA-256 of names and contents, hexadecimal, whatever the order of `sources`."""
    digest = hashlib.sha256()
    for name in sorted(sources, key=lambda name: PurePosixPath(name).parts):
        digest.update(f"{name}\0{len(sources[name])}\0".encode() + sources[name])
    return digest.hexdigest()


def sources_in(data: bytes, digest: str) -> dict[str, bytes] | None:
    """What an archive's bytes hold: path within the package -> source. None: it is not the code of `digest`."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            held = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
        found = {name.removeprefix(f"{package_name(digest)}/"): source for name, source in held}
        # an empty one is added where the folder has none
        without = {name: source for name, source in found.items() if name != _INIT or source}
        known = digest in (digest_of(found), digest_of(without))
    except Exception:  # a changed archive can fail in any way, and is none of ours then
        return None
    within = all(name.startswith(f"{package_name(digest)}/") for name, _ in held)
    return found if known and within and len(found) == len(held) else None


def checked(path: Path, digest: str, of: str) -> Code:
    """The frozen code of `digest`, read once from `path`. `of`: the release that it is of.

    Raises CodeChanged if the file is gone, can't be read, or holds anything else.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CodeChanged(
            f"the frozen code of {of}, {path}, is not there",
            fix="name the state directory that it was staged with, by SWITCHYARD_STATE_DIR; if it is gone, bring it back from a backup, "
            + _stage_anew(of),
        ) from None
    except OSError as error:
        raise CodeChanged(
            f"the frozen code of {of}, {path}, can't be read: {error.strerror}",
            fix="let the user who runs the driver read it",
        ) from error
    sources = sources_in(data, digest)
    if sources is None:
        raise CodeChanged(
            f"the frozen code of {of}, {path}, is not what was staged: it does not hold the code of digest {digest}",
            fix=f"none of it was run; bring the file back from a backup, {_stage_anew(of)}",
        )
    return Code(digest=digest, path=path, data=data, sources=sources)


def _stage_anew(of: str) -> str:
    app = of.rpartition(".v")[0] or of
    return f"or stage a new version: `switchyard stage {app} --from FOLDER`; from the same code as then, that writes this file again"


def admit(path: Path, digest: str, of: str) -> Code:
    """Has this process import `package_name(digest)` from `path`, as `checked` reads it. Raises as `checked` does."""
    code = checked(path, digest, of)
    known = _admitted.setdefault(package_name(digest), code)
    if known.digest != digest:
        raise CodeChanged(
            f"{path} has the package name of {known.path}, which this process has imported, and another digest",
            fix="run each in a process of its own",
        )
    install()
    return code


def environment_for(path: Path, digest: str, of: str) -> dict[str, str]:
    """Variables by which a Python process, once `install` was called there, admits this code when it is first imported.

    Nothing is imported from the folder that it runs in.
    """
    return {f"{_VARIABLE}{package_name(digest)}": f"{digest} {of} {path}", "PYTHONSAFEPATH": "1"}


def install() -> None:
    """Has this process import packages of frozen code by the guard alone. Once is enough; again, it does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


# by package name: what this process may import
_admitted: dict[str, Code] = {}


class _Finder:
    """Finds modules of admitted code; what else has such a name is found by nobody."""

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
        # nor does Python look elsewhere for it
        raise ModuleNotFoundError(f"no frozen code has a module {fullname}", name=fullname)


def _from_environment(package: str) -> Code | None:
    told = os.environ.get(f"{_VARIABLE}{package}")
    if told is None:
        return None
    digest, of, path = told.split(" ", 2)
    return admit(_on_this_host(Path(path)), digest, of)


def _on_this_host(path: Path) -> Path:
    """`path`; where it isn't there, the file of that name which Spark has sent to this executor, if it has."""
    if path.exists():
        return path
    from pyspark import SparkFiles

    # asking by its method needs a session, which a worker has not
    folder = SparkFiles._root_directory
    sent = Path(folder or "", path.name)
    return sent if folder and sent.exists() else path


def _spec(fullname: str, code: Code, name: str) -> ModuleSpec:
    file = f"{code.path}/{package_name(code.digest)}/{name}"
    package = PurePosixPath(name).name == _INIT
    # a package without a path: whatever looks for its modules by one finds none
    spec = ModuleSpec(fullname, _Loader(file, code.sources[name], package), origin=file, is_package=package)
    spec.has_location = True
    return spec


class _Loader(ExecutionLoader):
    """Runs a module from its source in memory, which tracebacks show, too."""

    def __init__(self, file: str, source: bytes, package: bool) -> None:
        self._file, self._source, self._package = file, source, package

    def get_filename(self, fullname: str) -> str:
        return self._file

    def get_source(self, fullname: str) -> str:
        return decode_source(self._source)

    def is_package(self, fullname: str) -> bool:
        return self._package
