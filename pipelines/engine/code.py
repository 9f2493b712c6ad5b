"""Frozen code: a deterministic zip of an app's modules, imported under a name that contains its digest."""

from __future__ import annotations

import ast
import hashlib
import importlib
import io
import os
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.model.app import App
from pipelines.settings import Settings

# digests that Python names can carry; 16 hexadecimal digits: 64 bits
_DIGEST_CHARS = 16
_CLOCKS = {"random", "uuid", "secrets", "time", "datetime"}


def package_name(digest: str) -> str:
    """The import name of frozen code: no working tree has a package of that name."""
    return f"app_{digest[:_DIGEST_CHARS]}"


def code_path(settings: Settings, digest: str) -> Path:
    return settings.state_dir / "code" / f"{digest}.zip"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenCode:
    """`digest`: SHA-256 of names and contents, hexadecimal. `data`: the zip's bytes."""

    digest: str
    data: bytes


def freeze(folder: Path) -> FrozenCode:
    """The zip of a code folder's Python files: same files, same bytes.

    Raises BadUsage if there are none or one isn't Python, Refused if a module reaches for what wouldn't be frozen
    (the repository's apps by their absolute name).
    """
    if not folder.is_dir():
        raise BadUsage(f"there is no code folder {folder}", fix="give a folder of Python modules to --from")
    files = sorted(p for p in folder.rglob("*.py") if "__pycache__" not in p.parts)
    if not files:
        raise BadUsage(
            f"the code folder {folder} has no Python module", fix="give the folder that holds the app's module"
        )
    contents = {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}
    for name, source in contents.items():
        _check(folder / name, source)
    digest = hashlib.sha256()
    for name, source in contents.items():
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    package = package_name(digest.hexdigest())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in {"__init__.py": b"", **contents}.items():
            # zip's epoch: a date of its own would change the bytes
            archive.writestr(zipfile.ZipInfo(f"{package}/{name}", (1980, 1, 1, 0, 0, 0)), source)
    return FrozenCode(digest=digest.hexdigest(), data=buffer.getvalue())


def _check(path: Path, source: bytes) -> None:
    try:
        tree = ast.parse(source, filename=str(path))
    except SyntaxError as error:
        raise BadUsage(f"{path}, line {error.lineno}: {error.msg}", fix="mend the module") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            if name.startswith("pipelines.") and not name.startswith("pipelines.model"):
                raise Refused(f"{path}, line {node.lineno}: imports {name}, which a release can't freeze",
                              fix="import within the code folder with a leading dot; from the platform only pipelines.model")  # fmt: skip
            if name.split(".")[0] in _CLOCKS:
                raise Refused(f"{path}, line {node.lineno}: imports {name}; a replay would not give the same result",
                              fix="take times from event_time and identities from the input's columns")  # fmt: skip


def frozen(settings: Settings, digest: str) -> FrozenCode:
    """Code that was frozen before, from its zip. Raises SwitchyardError if it is gone."""
    path = code_path(settings, digest)
    if not path.exists():
        raise SwitchyardError(
            f"the frozen code {path} is gone", fix="bring it back from a backup, or give --from a folder"
        )
    return FrozenCode(digest=digest, data=path.read_bytes())


def store(settings: Settings, code: FrozenCode) -> Path:
    """Writes the zip where drivers find it; there already: nothing to do."""
    path = code_path(settings, code.digest)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(code.data)
        os.replace(temporary, path)
    return path


def load(path: Path, digest: str, app: str, modules: tuple[str, ...] | None = None) -> tuple[App, str]:
    """Imports frozen code and finds app `app` in it. Returns it with the name of its module within the zip.

    Raises SwitchyardError if the zip isn't the one that was staged or a module can't be imported, BadUsage if no module
    (or more than one) defines the app.
    """
    if not path.exists():
        raise SwitchyardError(
            f"the frozen code {path} is gone", fix="bring it back from a backup, or stage a new version"
        )
    package = package_name(digest)
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))
        importlib.invalidate_caches()
    with zipfile.ZipFile(path) as archive:
        found = [n for n in archive.namelist() if n.startswith(f"{package}/")]
    if not found:
        raise SwitchyardError(f"{path} does not hold the code of digest {digest}", fix="stage a new version")
    names = modules or tuple(
        n.removeprefix(f"{package}/").removesuffix(".py").replace("/", ".")
        for n in found
        if not n.endswith("__init__.py")
    )
    matches: list[tuple[App, str]] = []
    known: list[str] = []
    for name in names:
        try:
            module = importlib.import_module(f"{package}.{name}")
        except Exception as error:
            raise BadUsage(
                f"module {name} can't be imported: {type(error).__name__}: {error}", fix="mend the module"
            ) from error
        for value in vars(module).values():
            if isinstance(value, App) and value.module == module.__name__:
                known.append(value.name)
                if value.name == app:
                    matches.append((value, name))
    if not matches:
        raise BadUsage(
            f"no app {app} in that code; there is: {', '.join(sorted(known)) or 'none'}",
            fix="check the name and --from",
        )
    if len(matches) > 1:
        raise BadUsage(
            f"app {app} is defined {len(matches)} times: {', '.join(n for _, n in matches)}", fix="leave one"
        )
    return matches[0]
