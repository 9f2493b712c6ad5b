"""Frozen code: a deterministic zip of an app's modules, imported under a name that contains its digest."""

from __future__ import annotations

import ast
import hashlib
import importlib
import io
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.model.app import App
from pipelines.paths import below
from pipelines.private import private
from pipelines.settings import Settings

# digests that Python names can carry; 16 hexadecimal digits: 64 bits
_DIGEST_CHARS = 16
# packages of the repository: an installation imports them from its working tree, whatever was frozen
_OURS = ("pipelines", "expectations", "orchestration", "benchmarks", "demo", "tests")
_MODEL = ("pipelines.model",)
_CLOCKS = ("random", "uuid", "secrets", "time", "datetime", "numpy.random", "os.urandom", "os.getrandom")
# import what they are told while they run, where nothing looks
_LOADERS = ("importlib", "pkgutil", "runpy", "zipimport", "__import__", "builtins.__import__")


def package_name(digest: str) -> str:
    """The import name of frozen code: no working tree has a package of that name."""
    return f"app_{digest[:_DIGEST_CHARS]}"


def code_path(settings: Settings, digest: str) -> Path:
    """Where frozen code is. Raises SwitchyardError where a link leads elsewhere."""
    return below(settings.state_dir, "code", f"{digest}.zip")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenCode:
    """`digest`: SHA-256 of names and contents, hexadecimal. `data`: the zip's bytes."""

    digest: str
    data: bytes


def freeze(folder: Path) -> FrozenCode:
    """The zip of a code folder's Python files: same files, same bytes.

    Raises BadUsage if there are none or one isn't Python, Refused if a module reaches for what wouldn't be frozen
    (the repository's packages, but for the model), for what could load that, or for what a replay wouldn't repeat.
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
    for line, does, name in _reached(tree):
        if _within(name, _OURS) and not _within(name, _MODEL):
            raise Refused(f"{path}, line {line}: {does} {name}, which a release can't freeze",
                          fix="import within the code folder with a leading dot; from the platform only pipelines.model")  # fmt: skip
        if _within(name, _LOADERS):
            raise Refused(f"{path}, line {line}: {does} {name}, which could load what a release can't freeze",
                          fix="import what is needed by its name; within the code folder with a leading dot")  # fmt: skip
        if _within(name, _CLOCKS):
            raise Refused(f"{path}, line {line}: {does} {name}; a replay would not give the same result",
                          fix="take times from event_time and identities from the input's columns")  # fmt: skip


def _reached(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Line, `imports` or `uses`, and the full name of what is not of the code folder: of `np.random` numpy.random."""
    meant: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, "imports", alias.name
                # `import a.b` makes a known, and all that hangs on it
                top = alias.name.partition(".")[0]
                meant[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield node.lineno, "imports", f"{node.module}.{alias.name}"
                meant[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := _full_name(node, meant)) is not None:
            yield node.lineno, "uses", name
        elif isinstance(node, ast.Name) and node.id == "__import__":
            yield node.lineno, "uses", node.id


def _full_name(node: ast.expr, meant: Mapping[str, str]) -> str | None:
    """What `a.b.c` stands for by the module's imports; None if `a` isn't one."""
    if isinstance(node, ast.Attribute):
        before = _full_name(node.value, meant)
        return None if before is None else f"{before}.{node.attr}"
    return meant.get(node.id) if isinstance(node, ast.Name) else None


def _within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def frozen(settings: Settings, digest: str) -> FrozenCode:
    """Code that was frozen before, from its zip. Raises SwitchyardError if it is gone."""
    path = code_path(settings, digest)
    if not path.exists():
        raise SwitchyardError(
            f"the frozen code {path} is not there",
            fix="name the state directory that it was staged with, by SWITCHYARD_STATE_DIR; if it is gone, bring it back from a backup, or give --from a folder",
        )
    return FrozenCode(digest=digest, data=path.read_bytes())


def store(settings: Settings, code: FrozenCode) -> Path:
    """Writes the zip where drivers find it; there already: nothing to do."""
    path = code_path(settings, code.digest)
    if not path.exists():
        private(settings.state_dir)
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
            f"the frozen code {path} is not there",
            fix="name the state directory that it was staged with, by SWITCHYARD_STATE_DIR; if it is gone, bring it back from a backup, or stage a new version",
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
