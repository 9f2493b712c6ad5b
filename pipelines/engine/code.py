"""Frozen code: a deterministic zip of an app's modules, imported under a name that contains its digest."""

from __future__ import annotations

import ast
import importlib
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from pipelines.engine.guard import admit, checked, digest_of, package_name, sources_in
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.model.app import App
from pipelines.objects import fetch, publish
from pipelines.paths import below
from pipelines.private import write_private
from pipelines.settings import Settings

# packages of the repository: they are imported from the working tree, not from what was frozen
_OURS = ("pipelines", "expectations", "orchestration", "benchmarks", "demo", "tests")
_MODEL = ("pipelines.model",)
# a suite in a code folder: frozen with the app, and imported only when its result is checked
_SUITE = "_suite.py"
_SUITES = ("expectations.suites",)
_NOT_OF_THE_APP = "each .py file of the folder is part of the app: move this one out if it isn't"
_CLOCKS = ("random", "uuid", "secrets", "time", "datetime", "numpy.random", "os.urandom", "os.getrandom")
# they import modules by names made at run time, which staging can't see
_LOADERS = ("importlib", "pkgutil", "runpy", "zipimport", "__import__", "builtins.__import__")


def code_path(settings: Settings, digest: str) -> Path:
    """The path of frozen code, for whoever reads it: it is fetched if the store is a bucket and this host lacks it.

    Raises as `code_place` and `fetch` do.
    """
    path = code_place(settings, digest)
    fetch(settings, path)
    return path


def code_place(settings: Settings, digest: str) -> Path:
    """The path of frozen code. Raises SwitchyardError if a link leads out of the store."""
    return below(settings.store_dir, "code", f"{digest}.zip")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenCode:
    """`digest`: SHA-256 of names and contents, in hexadecimal. `data`: the zip's bytes. `folder`: what was
    frozen, if known.
    """

    digest: str
    data: bytes
    folder: Path | None = field(default=None, compare=False)


def freeze(folder: Path) -> FrozenCode:
    """The zip of a code folder's Python files, without its tests. The same files always give the same bytes.

    A module whose name ends in `_suite` is one of expectations, and may import `expectations.suites`. Raises BadUsage if
    there are no files or one isn't Python. Raises Refused if a module uses what would not be frozen (the repository's
    packages except the model), what could load such code, or what a replay would not repeat.
    """
    if not folder.is_dir():
        if folder.exists():
            raise BadUsage(f"{folder} is a file, not a folder", fix=f"give its folder: --from {folder.parent}")
        raise BadUsage(f"there is no code folder {folder}", fix="give a folder of Python modules to --from")
    files = sorted(p for p in folder.rglob("*.py") if "__pycache__" not in p.parts and not _is_test(p))
    if not files:
        raise BadUsage(
            f"the code folder {folder} has no Python module", fix="give the folder that holds the app's module"
        )
    contents = {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}
    for name, source in contents.items():
        try:
            _check(folder / name, source)
        except (BadUsage, Refused) as error:
            if _names_the_model(source):
                raise
            raise type(error)(error.what, fix=f"{error.fix}; {_NOT_OF_THE_APP}") from error
    digest = digest_of(contents)
    package = package_name(digest)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in {"__init__.py": b"", **contents}.items():
            # zip's epoch: a date of its own would change the bytes
            archive.writestr(zipfile.ZipInfo(f"{package}/{name}", (1980, 1, 1, 0, 0, 0)), source)
    return FrozenCode(digest=digest, data=buffer.getvalue(), folder=folder)


def _names_the_model(source: bytes) -> bool:
    """Whether a module may define an app."""
    return b"pipelines.model" in source


def _is_test(path: Path) -> bool:
    return path.name == "conftest.py" or path.name.startswith("test_")


def _check(path: Path, source: bytes) -> None:
    ours = (*_MODEL, *_SUITES) if path.name.endswith(_SUITE) else _MODEL
    try:
        reached = _reached_by(source)
    except SyntaxError as error:
        raise BadUsage(f"{path}, line {error.lineno}: {error.msg}", fix="fix the module") from error
    for line, does, name in reached:
        if _within(name, _OURS) and not _within(name, ours):
            raise Refused(f"{path}, line {line}: {does} {name}, which a release can't freeze",
                          fix="import within the code folder with a leading dot; from this project only pipelines.model")  # fmt: skip
        if _within(name, _LOADERS):
            raise Refused(f"{path}, line {line}: {does} {name}, which could load what a release can't freeze",
                          fix="import modules by name; within the code folder with a leading dot")  # fmt: skip
        if _within(name, _CLOCKS):
            raise Refused(f"{path}, line {line}: {does} {name}; a replay would not give the same result",
                          fix="take times from event_time, and ids from the input's columns")  # fmt: skip


# a folder is frozen again for each of its apps that is staged
@lru_cache(maxsize=256)
def _reached_by(source: bytes) -> tuple[tuple[int, str, str], ...]:
    return tuple(_reached(ast.parse(source)))


def _reached(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Names from outside the code folder: line, `imports` or `uses`, full name (numpy.random for `np.random`)."""
    meant: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, "imports", alias.name
                # `import a.b` makes `a` and everything below it known
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
    """The full name of `a.b.c` by the module's imports; None if `a` isn't imported."""
    if isinstance(node, ast.Attribute):
        before = _full_name(node.value, meant)
        return None if before is None else f"{before}.{node.attr}"
    return meant.get(node.id) if isinstance(node, ast.Name) else None


def _within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def files_in(code: FrozenCode) -> frozenset[str]:
    """The files in frozen code, as paths within the folder."""
    return frozenset(sources_in(code.data, code.digest) or ())


def frozen(settings: Settings, digest: str, of: str) -> FrozenCode:
    """The code that release `of` was staged with. Raises CodeChanged if it is missing or was changed."""
    code = checked(code_path(settings, digest), digest, of)
    return FrozenCode(digest=digest, data=code.data)


def store(settings: Settings, code: FrozenCode) -> Path:
    """Writes the zip where drivers of all hosts find it, unless it is there already. Returns its path.

    Raises SwitchyardError if `code` is not the code of its digest, and as `publish` does.
    """
    path = code_place(settings, code.digest)
    if sources_in(code.data, code.digest) is None:
        raise SwitchyardError(f"the code for {path} does not match digest {code.digest}",
                              fix="run `switchyard stage` again: it freezes the folder again")  # fmt: skip
    if not path.exists() or sources_in(path.read_bytes(), code.digest) is None:
        write_private(settings.store_dir, path, code.data)
    # each time: an earlier attempt may have ended before this
    publish(settings, path)
    return path


def load(
    path: Path, digest: str, app: str, modules: tuple[str, ...] | None = None, *, of: str, where: str = ""
) -> tuple[App, str]:
    """Imports frozen code and finds app `app` in it. Returns the app and the name of its module within the zip.

    `of`: the release, `where`: the folder that was frozen, if known; both for messages. Raises CodeChanged if the zip is
    not what was staged, before any of it is imported. Raises BadUsage if a module can't be imported, or if no module or
    more than one defines the app.
    """
    package = package_name(digest)
    code = admit(path, digest, of)
    names = modules or tuple(
        name.removesuffix(".py").replace("/", ".")
        for name in code.sources
        if not name.endswith(("__init__.py", _SUITE))
    )
    matches: list[tuple[App, str]] = []
    known: list[str] = []
    for name in names:
        try:
            module = importlib.import_module(f"{package}.{name}")
        except Exception as error:
            raise _failed(error, name, names, code.sources) from error
        for value in vars(module).values():
            if isinstance(value, App) and value.module == module.__name__:
                known.append(value.name)
                if value.name == app:
                    matches.append((value, name))
    if not matches:
        raise _missing(app, known, where)
    if len(matches) > 1:
        raise BadUsage(f"app {app} is defined {len(matches)} times: {', '.join(n for _, n in matches)}", fix="keep one")
    return matches[0]


def _missing(app: str, known: list[str], where: str) -> BadUsage:
    near = get_close_matches(app, known, n=3)
    told = f"the nearest is {' or '.join(near)}" if near else f"there is: {', '.join(sorted(known)) or 'none'}"
    return BadUsage(
        f"no app {app} in {where or 'that code'}; {told}", fix="check the name, and the folder after --from"
    )


def _failed(error: Exception, name: str, names: Sequence[str], sources: Mapping[str, bytes]) -> BadUsage:
    """What to say of module `name`, which can't be imported. `names`: of all modules."""
    # commands import this module, and should not load Spark
    from pyspark.errors import PySparkException

    from pipelines.engine.causes import place

    if isinstance(error, BadUsage):
        # what the app says of itself: it says what is wrong with that, and what to write
        return BadUsage(f"{error.what}{place(error)}", fix=error.fix)
    fix = "fix the module"
    missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    if missing in names:
        fix = f"import within the code folder with a leading dot, as in `from . import {missing}`"
    elif isinstance(error, PySparkException) and error.getCondition() == "SESSION_OR_CONTEXT_NOT_EXISTS":
        fix = "Spark does not run yet at import: give a UDF its type as an object, as in @F.udf(DoubleType()); or make it in the function"
    elif not _names_the_model(sources[f"{name.replace('.', '/')}.py"]):
        fix = f"{fix}; {_NOT_OF_THE_APP}"
    return BadUsage(f"module {name} can't be imported: {type(error).__name__}: {error}{place(error)}", fix=fix)
