"""Frozen code: the same files make the same bytes, and what can't be frozen is refused with file and line."""

from __future__ import annotations

import io
import os
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from pipelines.engine.code import code_path, files_in, freeze, load, store
from pipelines.engine.guard import CodeChanged, package_name
from pipelines.errors import BadUsage, Refused
from pipelines.settings import Settings

APP = """
from pipelines.model import AppSettings, Stream, Table, Text, app

@app(name="{name}", inputs={{"lines": Stream(topic="lines", value=Text("line"))}}, result=Table(key=("word",)))
def {function}(lines, settings: AppSettings):
    return lines
"""


@pytest.fixture(autouse=True)
def _nothing_stays_imported() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith("app_")]:
        del sys.modules[name]


def folder(path: Path, **modules: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in modules.items():
        (path / f"{name}.py").write_text(text)
    return path


def one_app(name: str = "sums", function: str = "sums") -> str:
    return APP.format(name=name, function=function)


def test_the_same_files_make_the_same_bytes_whenever_and_wherever(tmp_path: Path) -> None:
    first = folder(tmp_path / "a", sums=one_app(), helper="X = 1\n")
    second = folder(tmp_path / "b", helper="X = 1\n", sums=one_app())
    for path in second.iterdir():
        os.utime(path, (1, 1))
        path.chmod(0o600)
    (second / "__pycache__").mkdir()
    (second / "__pycache__" / "sums.py").write_text("not code")
    (second / "notes.txt").write_text("not code")
    one, other = freeze(first), freeze(second)
    assert one == other == freeze(first)
    assert one.data == other.data
    with zipfile.ZipFile(io.BytesIO(one.data)) as archive:
        held = {Path(name).name for name in archive.namelist()}
    assert held == {"__init__.py", "helper.py", "sums.py"}


def test_any_change_of_a_file_or_its_name_makes_another_digest(tmp_path: Path) -> None:
    digests = {
        freeze(folder(tmp_path / "a", sums=one_app())).digest,
        freeze(folder(tmp_path / "b", sums=one_app() + "\n")).digest,
        freeze(folder(tmp_path / "c", adds=one_app())).digest,
        freeze(folder(tmp_path / "d", sums=one_app(), helper="")).digest,
    }
    assert len(digests) == 4


def test_the_package_is_named_after_the_digest(tmp_path: Path) -> None:
    code = freeze(folder(tmp_path / "a", sums=one_app()))
    (tmp_path / "zip").write_bytes(code.data)
    with zipfile.ZipFile(tmp_path / "zip") as archive:
        assert {Path(name).parts[0] for name in archive.namelist()} == {package_name(code.digest)}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import random", "imports random"),
        ("import datetime", "imports datetime"),
        ("from datetime import datetime", "imports datetime.datetime"),
        ("import time", "imports time"),
        ("import os, uuid", "imports uuid"),
        ("def f():\n    import secrets", "imports secrets"),
        ("import numpy.random", "imports numpy.random"),
        ("from numpy import random as r", "imports numpy.random"),
        ("import numpy as np\nX = np.random.default_rng(1)", "uses numpy.random.default_rng"),
        ("import os\nX = os.urandom(1)", "uses os.urandom"),
    ],
)
def test_what_a_replay_would_not_repeat_is_refused(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(Refused, match=rf"sums\.py, line [12]: {re.escape(said)}; a replay") as error:
        freeze(folder(tmp_path / "a", sums=line))
    assert "event_time" in error.value.fix


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from pipelines.apps import stock_stats", "imports pipelines.apps.stock_stats"),
        ("import pipelines.engine.code", "imports pipelines.engine.code"),
        ("from pipelines import apps, engine", "imports pipelines.apps"),
        ("from pipelines import model, engine", "imports pipelines.engine"),
        ("from pipelines import *", "imports pipelines.*"),
        ("import pipelines", "imports pipelines"),
        ("import pipelines.model\nX = pipelines.engine.code", "uses pipelines.engine.code"),
        ("import pipelines.models", "imports pipelines.models"),
        ("import orchestration.cli", "imports orchestration.cli"),
        ("from expectations.verdict import Verdict", "imports expectations.verdict.Verdict"),
        ("from demo.v1 import stock_stats", "imports demo.v1.stock_stats"),
    ],
)
def test_what_a_zip_would_not_hold_is_refused(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(
        Refused, match=rf"sums\.py, line [12]: {re.escape(said)}, which a release can't freeze"
    ) as error:
        freeze(folder(tmp_path / "a", sums=line))
    assert "leading dot" in error.value.fix


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import importlib\nX = importlib.import_module('pipelines.apps.stock_stats')", "imports importlib"),
        ("from importlib import import_module as f", "imports importlib.import_module"),
        ("import runpy", "imports runpy"),
        ("X = __import__('pipelines.apps')", "uses __import__"),
        ("import builtins\nX = builtins.__import__('pipelines.apps')", "uses builtins.__import__"),
    ],
)
def test_what_could_load_anything_is_refused(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(Refused, match=rf"sums\.py, line [12]: {re.escape(said)}, which could load") as error:
        freeze(folder(tmp_path / "a", sums=line))
    assert "by name" in error.value.fix


@pytest.mark.parametrize(
    "line",
    [
        "from pipelines.model import app",
        "from pipelines import model\nX = model.app",
        "import pipelines.model\nX = pipelines.model.app",
        "from .helper import X",
        "import json",
        "from . import time",
        "import numpy as np\nX = np.float64(1)",
        "def f(pipelines, row):\n    return pipelines.engine, row.random",
    ],
)
def test_the_model_a_neighbour_and_the_rest_may_be_imported(tmp_path: Path, line: str) -> None:
    assert freeze(folder(tmp_path / "a", sums=line, helper="X = 1", time="")).data


@pytest.mark.parametrize("code", ["pipelines/apps", "demo/v1", "demo/v3"])
def test_the_repository_s_own_apps_can_be_frozen(code: str) -> None:
    assert freeze(Path(__file__).resolve().parents[2] / code).data


def test_a_suite_may_import_the_suites_and_tests_are_left_out(tmp_path: Path) -> None:
    text = "from expectations.suites import base\n"
    tests = "import random, tests.e2e\n"
    code = freeze(folder(tmp_path / "a", sums=one_app(), sums_suite=text, test_sums=tests, conftest=tests))
    assert files_in(code) == {"__init__.py", "sums.py", "sums_suite.py"}
    with pytest.raises(Refused, match="orchestration"):
        freeze(folder(tmp_path / "b", sums=one_app(), sums_suite="import orchestration\n"))
    # a driver never imports it
    broken = freeze(folder(tmp_path / "c", sums=one_app(), sums_suite="raise ValueError\n"))
    path = store(Settings(state_dir=tmp_path / "state"), broken)
    assert load(path, broken.digest, "sums", of="sums.v1")[1] == "sums"


def test_a_syntax_error_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match=r"sums\.py, line 3: "):
        freeze(folder(tmp_path / "a", sums="a = 1\nb = 2\nc = = 3\n"))


def test_a_folder_that_is_missing_or_empty_is_bad_usage(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="there is no code folder"):
        freeze(tmp_path / "none")
    with pytest.raises(BadUsage, match="has no Python module"):
        freeze(folder(tmp_path / "empty"))


def stored(tmp_path: Path, **modules: str) -> tuple[Path, str]:
    code = freeze(folder(tmp_path / "tree", **modules))
    return store(Settings(state_dir=tmp_path), code), code.digest


def test_an_app_is_found_in_frozen_code_and_stays_what_it_was(tmp_path: Path) -> None:
    path, digest = stored(tmp_path, sums=one_app(), other=one_app("others", "others"))
    assert path == code_path(Settings(state_dir=tmp_path), digest)
    # the working tree changes, but not the zip
    folder(tmp_path / "tree", sums="raise RuntimeError")
    app, module = load(path, digest, "sums", of="sums.v1")
    assert (app.name, module) == ("sums", "sums")
    assert app.module == f"{package_name(digest)}.sums"


def test_an_app_that_is_imported_by_a_neighbour_is_one_app(tmp_path: Path) -> None:
    path, digest = stored(tmp_path, sums=one_app(), more="from .sums import sums\n")
    assert load(path, digest, "sums", of="sums.v1")[1] == "sums"


def test_an_app_that_is_not_there_or_there_twice_is_bad_usage(tmp_path: Path) -> None:
    path, digest = stored(tmp_path, sums=one_app(), copy=one_app(function="again"))
    with pytest.raises(BadUsage, match="no app none in that code; there is: sums"):
        load(path, digest, "none", of="sums.v1")
    with pytest.raises(BadUsage, match="no app sum in my/apps; the nearest is sums"):
        load(path, digest, "sum", of="sums.v1", where="my/apps")
    with pytest.raises(BadUsage, match="app sums is defined 2 times: copy, sums"):
        load(path, digest, "sums", of="sums.v1")


def test_a_module_that_can_not_be_imported_is_named(tmp_path: Path) -> None:
    path, digest = stored(tmp_path, sums="1 / 0")
    with pytest.raises(BadUsage, match="module sums can't be imported: ZeroDivisionError"):
        load(path, digest, "sums", of="sums.v1")


@pytest.mark.parametrize(
    ("source", "what", "fix"),
    [
        (one_app().replace("result=", "resalt="), r"TypeError: .*resalt.*\(sums\.py, line \d+", "fix the module"),
        ("import helper\nimport pipelines.model\n", "No module named 'helper'", "`from . import helper`"),
        ("1 / 0\n", "ZeroDivisionError", "move this one out"),
        (
            "from pyspark.sql import functions as F\n@F.udf('double')\ndef twice(n):\n    return 2 * n\n",
            "SESSION_OR_CONTEXT_NOT_EXISTS",
            "@F.udf(DoubleType())",
        ),
    ],
    ids=["option", "neighbour", "script", "udf"],
)
def test_a_module_that_can_not_be_imported_says_where_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, what: str, fix: str
) -> None:
    # as in a trial, which starts Spark later; other tests of this process may have started it
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    path, digest = stored(tmp_path, sums=source, helper="")
    with pytest.raises(BadUsage) as refused:
        load(path, digest, "sums", of="sums.v1")
    assert re.search(what, refused.value.what) and fix in refused.value.fix, refused.value


def test_a_script_beside_the_app_is_told_to_leave(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        freeze(folder(tmp_path, sums=one_app(), send="import random\n"))
    assert "move this one out" in refused.value.fix
    with pytest.raises(BadUsage, match=r"send\.py is a file, not a folder"):
        freeze(tmp_path / "send.py")


def test_frozen_code_that_is_gone_or_of_another_digest_stops_the_driver(tmp_path: Path) -> None:
    path, digest = stored(tmp_path, sums=one_app())
    with pytest.raises(CodeChanged, match="does not hold the code of digest 0000"):
        load(path, "0" * 64, "sums", of="sums.v1")
    path.unlink()
    with pytest.raises(CodeChanged, match=f"frozen code {path} of sums.v1 is gone"):
        load(path, digest, "sums", of="sums.v1")


def test_storing_twice_leaves_the_first(tmp_path: Path) -> None:
    path, _ = stored(tmp_path, sums=one_app())
    before = path.stat().st_ino
    stored(tmp_path, sums=one_app())
    assert path.stat().st_ino == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_what_a_definition_contradicts_is_said_as_it_is_and_where(tmp_path: Path) -> None:
    path, digest = stored(tmp_path, sums=one_app().replace('name="sums"', 'name="my_sums"'))
    with pytest.raises(BadUsage) as refused:
        load(path, digest, "sums", of="sums.v1")
    assert re.fullmatch(r"app name 'my_sums' is not .* \(sums\.py, line \d+, in <module>\)", refused.value.what)
    assert refused.value.fix == "rename it, as in stock-stats"
