"""`switchyard new`: what it writes is an app, a suite and a test that work as they are."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.check import check
from orchestration.scaffold import scaffold
from pipelines.engine.code import files_in, freeze
from pipelines.engine.rehearsal import Rehearsal
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.client import producer
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.settings import Settings
from tests.e2e.cluster import LARGE, ROOT, Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIVES, LIFE = "tests/e2e/test_lives.py", "test_each_app_goes_through_its_whole_life_although_its_driver_is_killed"
HOUSE = "tests/test_house.py::test_every_app_has_a_life_in_the_tests"


def test_three_files_are_written_and_none_is_overwritten(tmp_path: Path) -> None:
    files = scaffold("my-sums", "orders", tmp_path / "mine")
    assert [path.name for path in files] == ["my_sums.py", "my_sums_suite.py", "test_my_sums.py"]
    # the test is not frozen, the suite is
    assert files_in(freeze(tmp_path / "mine")) == {"__init__.py", "my_sums.py", "my_sums_suite.py"}
    files[0].unlink()
    with pytest.raises(Refused, match=r"these files already exist: .*my_sums_suite\.py, .*test_my_sums\.py"):
        scaffold("my-sums", "orders", tmp_path / "mine")
    assert not files[0].exists()
    with pytest.raises(BadUsage, match="is not lower-case words joined by hyphens"):
        scaffold("My Sums", "orders", tmp_path)
    with pytest.raises(BadUsage, match="is a word of Python's"):
        scaffold("class", "orders", tmp_path)
    for topic in ('a"b', "a b", "", ".."):
        with pytest.raises(BadUsage, match="can't be a topic of Kafka"):
            scaffold("sums", topic, tmp_path)
    with pytest.raises(BadUsage, match="can't be written"):
        scaffold("sums", "orders", files[1])
    assert not list(tmp_path.glob("*.py"))


def test_in_the_repository_they_go_where_apps_suites_and_tests_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestration.scaffold._ROOT", tmp_path)
    for name in ("Makefile", "requirements.lock"):
        (tmp_path / name).touch()
    files = [path.relative_to(tmp_path).as_posix() for path in scaffold("my-sums", "orders", None)]
    assert files == ["pipelines/apps/my_sums.py", "expectations/suites/my_sums.py", "tests/apps/test_my_sums.py"]
    for file in files:
        ast.parse((tmp_path / file).read_text())
    # as a test demands of each app in the repository
    assert 'oversized="dead-letter"' in (tmp_path / files[0]).read_text()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what a checkout needs to write an app and to collect its tests."""
    for name in ("pipelines", "expectations", "orchestration", "demo", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def in_checkout(folder: Path, *arguments: str) -> tuple[int, str]:
    """Runs a module of Python there. Returns its exit code and what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env={**environment, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.slow
def test_in_the_repository_its_whole_life_is_tested_without_an_edit_anywhere_else(checkout: Path) -> None:
    said = in_checkout(checkout, "orchestration.cli", "new", "my-sums", "--topic", "orders")
    assert said[0] == 0, said
    code, text = in_checkout(checkout, "pytest", "-q", "--collect-only", "-p", "no:xdist", LIVES)
    assert code == 0 and f"{LIVES}::{LIFE}[my-sums]" in text, text
    assert in_checkout(checkout, "pytest", "-q", "-p", "no:xdist", HOUSE)[0] == 0
    # without its LIFE, the tests say what is missing
    test = checkout / "tests/apps/test_my_sums.py"
    test.write_text("\n".join(line for line in test.read_text().splitlines() if not line.startswith("LIFE")))
    code, text = in_checkout(checkout, "pytest", "-q", "-p", "no:xdist", HOUSE)
    assert code == 1 and "tests/apps/test_my_sums.py has no LIFE: it says with what input my-sums goes" in text, text


def test_an_installed_package_has_no_place_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.scaffold._ROOT", tmp_path)
    with pytest.raises(Refused, match="installed as a package") as caught:
        scaffold("my-sums", "orders", None)
    assert "`switchyard new my-sums --topic orders --in my-sums`" in caught.value.fix
    assert not list(tmp_path.iterdir())
    assert len(scaffold("my-sums", "orders", tmp_path / "my-sums")) == 3


@pytest.mark.spark
def test_its_test_passes(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, test = scaffold("my-sums", "orders", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.spec_from_file_location("test_my_sums", test)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        module.test_the_records_of_each_key_are_counted(spark)
        # an author who starts from it has nothing to mend: the plan of staging shows these notes as warnings
        rehearsal = Rehearsal(spark, module.my_sums, {})
        assert rehearsal.notes(rehearsal.result()) == []
    finally:
        sys.modules.pop("my_sums", None)


@pytest.mark.e2e
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.long
def test_it_is_released_and_checked_by_its_own_suite(broker: Settings, spark: SparkSession, tmp_path: Path) -> None:
    code = tmp_path / "mine"
    scaffold("my-sums", "my-orders", code)
    ensure_topic(broker, "my-orders", 2, INPUT)
    client = producer(broker)
    for number in range(100):
        client.produce("my-orders", json.dumps({"amount": number}), f"k{number % 7}", timestamp=1_600_000_000_000)
    assert client.flush(20) == 0
    cluster = Cluster(broker, tmp_path, lambda: spark)
    try:
        with cluster.trials():
            assert plan_stage(cluster.context(), "my-sums", code_dir=code).warnings == ()
        cluster.hydrate("my-sums", 1, batch=LARGE, code_dir=code)
        verdict = check(cluster.context(), "my-sums.v1")
        assert verdict.ok and verdict.suite == "my_sums_suite" and verdict.rows == 7
        # the suite is frozen with the app: this version's finds fault with it
        suite = code / "my_sums_suite.py"
        suite.write_text(suite.read_text().replace('base.at_least("records", 1)', 'base.at_least("records", 1_000)'))
        assert check(cluster.context(), "my-sums.v1").ok
        cluster.make_live("my-sums", 1)
        cluster.hydrate("my-sums", 2, batch=LARGE, code_dir=code)
        said = cluster.cli("diff", "my-sums.v2")
        assert said.code == 0, said.text
        assert [line.partition(":")[0] for line in check(cluster.context(), "my-sums.v2").failures] == [
            "records in range"
        ]
        suite.unlink()
        with pytest.raises(BadUsage, match="there is no suite 'my_sums_suite'"):
            cluster.stage("my-sums", 3, code_dir=code)
        cluster.stop("my-sums.v1", "my-sums.v2")
    finally:
        cluster.close()
