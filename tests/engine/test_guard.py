"""Frozen code runs only as staged: drivers and Python workers check its digest before they import it."""

from __future__ import annotations

import io
import linecache
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyspark
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.launchers.local import LocalLauncher
from pipelines.engine import guard
from pipelines.engine.code import FrozenCode, code_path, freeze, frozen, load, store
from pipelines.engine.driver import Driver
from pipelines.engine.guard import (
    INSTALLED,
    WORKERS,
    CodeChanged,
    checked,
    digest_of,
    environment_for,
    package_name,
    sources_in,
)
from pipelines.engine.orders import Orders
from pipelines.engine.query import Query
from pipelines.engine.session import send_code
from pipelines.engine.telemetry import DriverStatus
from pipelines.engine.tries import Tries
from pipelines.errors import SwitchyardError
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.registry import Registry
from pipelines.kafka.topics import RESULT_STREAM, ensure_topic
from pipelines.model.entries import GenerationStarted, Staged, WantedSet
from pipelines.model.names import dead_letter_topic, progress_topic, result_topic
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import RegistryState, fold
from pipelines.settings import Settings
from tests.engine.test_lease import SPEC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = """
from pathlib import Path
from pipelines.model import AppSettings, Stream, Table, Text, app

RAN = "as staged"

@app(name="sums", inputs={"lines": Stream(topic="lines", value=Text("line"))}, result=Table(key=("word",)))
def sums(lines, settings: AppSettings):
    from . import later
    return later.WORD

def fails():
    raise ValueError("at this line")
"""
MODULES = {
    "sums.py": APP,
    "later.py": "WORD = 'as staged'\n",
    "nested/__init__.py": "",
    "nested/deep.py": "from .. import later\n",
}


@pytest.fixture(autouse=True)
def _nothing_stays_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(guard, "_admitted", {})
    yield
    for name in [name for name in sys.modules if name.startswith("app_")]:
        del sys.modules[name]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state", bootstrap_servers="127.0.0.1:1")


def written(folder: Path, modules: Mapping[str, str] = MODULES) -> Path:
    for name, text in modules.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def code(tmp_path: Path) -> FrozenCode:
    return freeze(written(tmp_path / "tree"))


@pytest.fixture
def staged(settings: Settings, code: FrozenCode) -> Path:
    return store(settings, code)


def rewritten(data: bytes, change: Mapping[str, str]) -> bytes:
    """The zip with some members replaced or added, written by someone who knows its format."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in [*old.namelist(), *(name for name in change if name not in old.namelist())]:
            new.writestr(name, change[name] if name in change else old.read(name))
    return buffer.getvalue()


def tampered(path: Path, digest: str) -> None:
    """Changes one byte of a module."""
    path.write_bytes(
        rewritten(path.read_bytes(), {f"{package_name(digest)}/sums.py": APP.replace("staged", "stagee", 1)})
    )


# -- what an archive holds


def test_the_digest_is_of_what_was_frozen_in_whatever_order(code: FrozenCode) -> None:
    found = sources_in(code.data, code.digest)
    assert found is not None and {name: text.decode() for name, text in found.items()} == {**MODULES, "__init__.py": ""}
    assert digest_of({name: MODULES[name].encode() for name in reversed(MODULES)}) == code.digest


@pytest.mark.parametrize("first", ["", "X = 1\n"])
def test_a_folder_with_a_first_module_of_its_own_is_known_again(tmp_path: Path, first: str) -> None:
    code = freeze(written(tmp_path / "own", {"__init__.py": first, "sums.py": APP}))
    found = sources_in(code.data, code.digest)
    assert found is not None and found["__init__.py"].decode() == first


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> FrozenCode:
    """Like `code`, but shared by all examples of a test."""
    return freeze(written(tmp_path_factory.mktemp("tree")))


@given(data=st.data())
def test_frozen_code_is_as_it_was_staged_or_is_refused(once: FrozenCode, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(once.data) - 1))
    changed = once.data[:at] + data.draw(st.binary(max_size=8)) + once.data[at + data.draw(st.integers(0, 3)) :]
    # a date may change, for example: it is not part of what runs
    assert sources_in(changed, once.digest) in (None, sources_in(once.data, once.digest))


def test_members_that_were_not_staged_are_refused(code: FrozenCode) -> None:
    package = package_name(code.digest)
    for name in (
        "json.py",
        "numpy/__init__.py",
        f"{package}/more.py",
        f"{package}/sums.pyc",
        f"{package}/../json.py",
        "sums.py",
    ):
        assert sources_in(rewritten(code.data, {name: "X = 1"}), code.digest) is None
    buffer = io.BytesIO(code.data)
    with zipfile.ZipFile(buffer, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(f"{package}/later.py", "WORD = 'as staged'\n")
    assert sources_in(buffer.getvalue(), code.digest) is None


def test_code_outside_of_its_package_is_not_that_code(code: FrozenCode) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in MODULES.items():
            archive.writestr(name, text)
    assert sources_in(buffer.getvalue(), code.digest) is None


# -- in a driver


def test_a_changed_byte_stops_a_driver_before_any_of_it_runs(staged: Path, code: FrozenCode) -> None:
    tampered(staged, code.digest)
    with pytest.raises(CodeChanged) as refusal:
        load(staged, code.digest, "sums", ("sums",), of="sums.v1")
    assert str(staged) in refusal.value.what and "sums.v1" in refusal.value.what and code.digest in refusal.value.what
    assert (
        "`switchyard stage sums --from FOLDER --correction REASON --execute`" in refusal.value.fix
        and "backup" in refusal.value.fix
    )
    assert not [name for name in sys.modules if name.startswith(package_name(code.digest))]


def test_code_that_was_imported_before_is_checked_again(staged: Path, code: FrozenCode) -> None:
    load(staged, code.digest, "sums", ("sums",), of="sums.v1")
    tampered(staged, code.digest)
    with pytest.raises(CodeChanged, match=r"sums\.v1"):
        load(staged, code.digest, "sums", ("sums",), of="sums.v1")


def test_what_was_checked_runs_whatever_is_in_the_file_by_then(staged: Path, code: FrozenCode) -> None:
    app, _ = load(staged, code.digest, "sums", ("sums",), of="sums.v1")
    package = package_name(code.digest)
    staged.write_bytes(
        rewritten(code.data, {f"{package}/later.py": "WORD = 'evil'", f"{package}/new.py": "", "evil.py": ""})
    )
    function = cast(Any, app.function)
    assert function(None, None) == "as staged"
    assert import_module(f"{package}.nested.deep").later.WORD == "as staged"
    for name in (f"{package}.new", f"{package}.nested.new", "evil"):
        with pytest.raises(ModuleNotFoundError):
            import_module(name)
    assert not [entry for entry in sys.path if str(staged) in entry]


def test_a_traceback_shows_the_frozen_line(staged: Path, code: FrozenCode) -> None:
    load(staged, code.digest, "sums", ("sums",), of="sums.v1")
    module = import_module(f"{package_name(code.digest)}.sums")
    assert module.__file__ == f"{staged}/{module.__name__.replace('.', '/')}.py"
    line = linecache.getline(
        module.__file__, APP.splitlines().index('    raise ValueError("at this line")') + 1, vars(module)
    )
    assert line.strip() == 'raise ValueError("at this line")'


def test_a_name_of_frozen_code_is_looked_up_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard.install()
    (tmp_path / "app_0123456789abcdef.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no frozen code has a module app_0123456789abcdef"):
        import_module("app_0123456789abcdef")


def test_two_digests_that_begin_alike_are_not_taken_for_each_other(staged: Path, code: FrozenCode) -> None:
    known = checked(staged, code.digest, "sums.v1")
    guard._admitted[package_name(code.digest)] = guard.Code(
        digest=code.digest[:16] + "0" * 48, path=staged, data=b"", sources=known.sources
    )
    with pytest.raises(CodeChanged, match="another digest"):
        load(staged, code.digest, "sums", of="sums.v1")


# -- where it is kept


def test_changed_code_is_not_staged_again_from_there(settings: Settings, staged: Path, code: FrozenCode) -> None:
    assert frozen(settings, code.digest, "sums.v1") == code
    tampered(staged, code.digest)
    with pytest.raises(CodeChanged, match=r"sums\.v1"):
        frozen(settings, code.digest, "sums.v1")
    staged.unlink()
    with pytest.raises(CodeChanged, match=f"frozen code {staged} of sums.v1 is gone"):
        frozen(settings, code.digest, "sums.v1")


def test_storing_the_same_code_again_mends_a_changed_file(settings: Settings, staged: Path, code: FrozenCode) -> None:
    tampered(staged, code.digest)
    assert store(settings, code) == staged and staged.read_bytes() == code.data
    assert [path.name for path in staged.parent.iterdir()] == [staged.name]


def test_code_is_stored_under_its_own_digest_alone(settings: Settings, code: FrozenCode) -> None:
    other = FrozenCode(digest="0" * 64, data=code.data)
    with pytest.raises(SwitchyardError, match="does not match digest 0000"):
        store(settings, other)
    assert not code_path(settings, other.digest).exists()


# -- in a Python worker


def worker(
    path: Path, code: FrozenCode, statement: str, *more: Path, installed: bool = False
) -> subprocess.CompletedProcess[str]:
    """A Python process as Spark starts one for a release, in a folder with a module that must not be imported."""
    folder = path.parents[1] / "run"
    folder.mkdir(exist_ok=True)
    (folder / "json.py").write_text("raise SystemExit('imported')")
    root = Path(guard.__file__).parents[2]
    paths = os.pathsep.join(map(str, (WORKERS, *more, root)))
    env = {**os.environ, "PYTHONPATH": paths, **environment_for(path, code.digest, "sums.v1")}
    if installed:
        env[INSTALLED] = "1"
    return subprocess.run(
        [sys.executable, "-c", statement], env=env, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_worker_that_starts_after_a_change_refuses(staged: Path, code: FrozenCode, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("print('theirs ran, too')")
    statement = f"import {package_name(code.digest)}.later as m; print(m.WORD)"
    well = worker(staged, code, statement, tmp_path / "theirs")
    assert (well.returncode, well.stdout, well.stderr) == (0, "theirs ran, too\nas staged\n", "")
    tampered(staged, code.digest)
    refused = worker(staged, code, statement)
    assert refused.returncode == 1 and refused.stdout == ""
    assert f"CodeChanged: the frozen code of sums.v1, {staged}, is not what was staged" in refused.stderr


@pytest.mark.slow
def test_a_worker_of_this_installation_looks_into_no_zip(staged: Path, code: FrozenCode) -> None:
    zips = sorted(Path(pyspark.__path__[0], "python", "lib").glob("*.zip"))
    assert len(zips) == 2
    statement = "import sys, os, pyspark; print(os.path.isfile(pyspark.__file__), *filter(os.path.isfile, sys.path))"
    elsewhere = worker(staged, code, statement, *zips)
    assert elsewhere.stdout.split() == ["False", *map(str, zips)]
    here = worker(staged, code, statement, *zips, installed=True)
    assert (here.stdout, here.stderr) == ("True\n", "")


@pytest.mark.spark
def test_sparks_workers_import_frozen_code_and_refuse_changed_code(
    spark: SparkSession, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PythonException
    from pyspark.sql.functions import udf

    code = freeze(
        written(
            tmp_path / "functions",
            {**MODULES, "words.py": "def word(n):\n    from . import later\n    return later.WORD\n"},
        )
    )
    path = store(settings, code)
    monkeypatch.setattr(spark.sparkContext, "environment", dict(spark.sparkContext.environment))
    guard.admit(path, code.digest, "sums.v1")
    word = import_module(f"{package_name(code.digest)}.words").word

    def said() -> list[str]:
        return [row[0] for row in spark.range(2).select(udf(word, "string")("id")).collect()]

    send_code(spark, path, code.digest, "sums.v1")
    assert said() == ["as staged", "as staged"]
    tampered(path, code.digest)
    # other variables, other processes
    spark.sparkContext.environment["ANEW"] = "1"
    with pytest.raises(
        PythonException, match=f"CodeChanged: the frozen code of sums.v1, {path}, is not what was staged"
    ):
        said()
    monkeypatch.undo()


# -- as an operator sees it


def test_a_driver_imports_nothing_from_the_folder_that_it_runs_in(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], Path]] = []
    monkeypatch.setattr(
        "orchestration.launchers.local.subprocess.Popen", lambda command, cwd, **_: started.append((command, cwd))
    )
    LocalLauncher(settings).spawn("sums.v1")
    monkeypatch.undo()
    command, folder = started[0]
    (folder / "json.py").write_text("raise SystemExit('imported')")
    # the same interpreter, with a shorter program
    shorter = [*command[: command.index("-m")], "-c", "import json"]
    assert subprocess.run(shorter, cwd=folder, check=False, timeout=60).returncode == 0


def test_a_driver_whose_workers_refuse_blames_neither_batch_nor_app(
    settings: Settings, staged: Path, code: FrozenCode
) -> None:
    spec = SPEC.model_copy(update={"code_digest": code.digest})
    known = fold(RegistryState(), [Staged(spec=spec)])
    orders = cast(Orders, SimpleNamespace(registry=SimpleNamespace(known=known)))
    status = DriverStatus()
    tries = Tries(settings, "sums.v1", orders, status)
    tries._failed = {7: 2}
    tampered(staged, code.digest)
    with pytest.raises(CodeChanged, match=r"sums\.v1, .* is not what was staged"):
        tries.count(cast(Query, None), 7, RuntimeError("a task has failed"))
    assert tries._failed == {7: 2} and status.error is None


@pytest.mark.broker
def test_a_driver_refuses_changed_code_and_runs_it_once_it_is_restored(broker: Settings, tmp_path: Path) -> None:
    code = freeze(written(tmp_path / "tree"))
    path = store(broker, code)
    spec = SPEC.model_copy(update={"app": "guarded", "release": "guarded.v1", "code_digest": code.digest})
    start = GenerationStarted(release=spec.release, generation=1, start=SourcePosition(sources={}))
    wanted = WantedSet(release=spec.release, wanted="running")
    with Registry(broker, actor="test") as registry:
        registry.step(lambda _: [Staged(spec=spec), start, wanted])
    # a driver checks its topics before it imports the code
    for topic in (result_topic(spec.release, 1), progress_topic(spec.release), dead_letter_topic(spec.release)):
        ensure_topic(broker, topic, 1, RESULT_STREAM)
    tampered(path, code.digest)

    def ends_with(exit_code: int) -> str:
        assert Driver(broker, spec.release).run() == exit_code
        beat = latest_heartbeats(broker)[spec.release]
        assert beat.state == "failed"
        return beat.error or ""

    error = ends_with(1)
    assert f"the frozen code of guarded.v1, {path}, is not what was staged" in error and code.digest in error
    assert "`switchyard stage guarded --from" in error
    with Registry(broker, actor="test") as registry:
        # the release keeps its state and can start once the file is back
        release = registry.state().releases[spec.release]
        assert (release.state, release.lease_ended) == ("staged", True)
    store(broker, code)
    # it gets that far without Spark: the modules are imported
    assert "no app guarded in that code; there is: sums" in ends_with(2)
