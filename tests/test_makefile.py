"""`make setup` does each step when its input has changed, and only then. What the steps do is not done here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipelines.engine.jvm.jars import SCALA_SOURCES, class_archive, pyspark_jars, scala_jar
from tests.shared.waiting import until

ROOT = Path(__file__).resolve().parents[1]
READ = ("Makefile", "requirements.lock", "requirements-postgres.lock", "requirements-uv.lock", "pyproject.toml",
        "orchestration/local/jars.toml",
        *(str(source.relative_to(ROOT)) for source in SCALA_SOURCES))  # fmt: skip
# stands for every program of the virtual environment, and for the Python that makes it: notes what was asked for, and
# leaves what the step would leave
PROGRAM = """#!/bin/sh
case "$*" in
  "jars --no-archive")
    echo jars >> did
    cmp -s orchestration/local/jars.toml fetched || { rm -rf $JARS/spark; mkdir -p $JARS/spark; cp orchestration/local/jars.toml fetched; }
    mkdir -p $JARS/compiled
    [ $SCALA -nt $JARS/spark ] || touch $SCALA ;;
  "jars") echo archive >> did; [ -e spoilt ] || touch $CLASSES $JARS/broker-classes-1.jsa ;;
  "pip sync"*)
    echo packages >> did
    echo "$*" > synced
    grep -A 1 ^pyspark== requirements.lock | cmp -s - installed \\
      || { rm -rf $PYSPARK; mkdir -p $PYSPARK; grep -A 1 ^pyspark== requirements.lock > installed; } ;;
  "-m venv .venv")
    echo venv >> venvs
    while [ -e hold ]; do sleep 0.02; done
    mkdir -p .venv/bin; cp program .venv/bin/python; cp program .venv/bin/uv; cp program .venv/bin/switchyard ;;
esac
"""
SETUP = ("setup", "PYTHON=./program", "--eval", "export JARS SCALA CLASSES PYSPARK")


class Checkout:
    """What make reads of the project, with programs that do nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in READ:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        (folder / "program").write_text(PROGRAM)
        (folder / "program").chmod(0o755)

    def setup(self, *more: str) -> list[str]:
        """The steps that `make setup` takes. What changes after it, is newer by some time."""
        did = self.folder / "did"
        did.unlink(missing_ok=True)
        self.make(*SETUP, *more)
        for path in (self.folder, *self.folder.rglob("*")):
            found = path.stat()
            os.utime(path, (found.st_atime - 10, found.st_mtime - 10))
        return did.read_text().splitlines() if did.exists() else []

    def make(self, *arguments: str) -> str:
        said, _ = (made := self.start(*arguments)).communicate()
        assert made.returncode == 0, said
        return said

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("SWITCHYARD_", "MAKE"))
        }
        return subprocess.Popen(
            ["make", *arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def change(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = re.sub(old, new, path.read_text(), count=1, flags=re.MULTILINE)
        assert text != path.read_text()
        path.write_text(text)

    def made(self) -> list[str]:
        return self.make("--eval", "made: ; @echo $(SCALA) $(CLASSES)", "made").split()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout that is set up."""
    made = Checkout(tmp_path)
    assert made.setup() == ["packages", "jars", "archive"]
    return made


def test_a_second_set_up_does_nothing(checkout: Checkout) -> None:
    assert checkout.setup() == []


def test_make_and_python_call_what_is_made_by_the_same_names(checkout: Checkout) -> None:
    jars = checkout.folder / ".switchyard" / "jars"
    names = [str(path.relative_to(jars)) for path in (checkout.folder / name for name in checkout.made())]
    pyspark = checkout.folder / ".venv/lib/python3.11/site-packages/pyspark/jars"
    assert names == [f"compiled/{scala_jar().name}", class_archive(pyspark).name]


def test_checkouts_that_share_the_jars_have_an_archive_each(tmp_path: Path) -> None:
    assert len({class_archive(tmp_path / name / "pyspark" / "jars") for name in ("one", "other")}) == 2
    assert class_archive() == class_archive(pyspark_jars())


def test_a_lock_file_that_changes_beside_pyspark_makes_neither_anew(checkout: Checkout) -> None:
    checkout.change("requirements.lock", r"^typer==\S+", "typer==99.0")
    assert checkout.setup() == ["packages"]
    assert checkout.setup() == []


@pytest.mark.slow
def test_another_pyspark_makes_both_anew(checkout: Checkout) -> None:
    before = checkout.made()
    checkout.change("requirements.lock", r"^pyspark==\S+", "pyspark==4.0.99")
    assert checkout.setup() == ["packages", "jars", "archive"]
    assert not set(before) & set(checkout.made())
    assert checkout.setup() == []


@pytest.mark.slow
def test_an_archive_of_the_broker_that_is_missing_is_made(checkout: Checkout) -> None:
    for archive in checkout.folder.rglob("broker-classes-*.jsa"):
        archive.unlink()
    assert checkout.setup() == ["archive"]
    assert checkout.setup() == []


@pytest.mark.slow
def test_the_same_pyspark_installed_anew_makes_the_archive_anew(checkout: Checkout) -> None:
    shutil.rmtree(checkout.folder / ".venv")
    (checkout.folder / "installed").unlink()
    assert checkout.setup() == ["packages", "archive"]
    assert checkout.setup() == []


def test_other_jars_make_both_anew(checkout: Checkout) -> None:
    checkout.change("orchestration/local/jars.toml", "spark-avro_2.13:4.0.2", "spark-avro_2.13:4.0.3")
    assert checkout.setup() == ["jars", "archive"]
    assert checkout.setup() == []


def test_a_list_of_jars_that_is_only_newer_has_them_verified(checkout: Checkout) -> None:
    (checkout.folder / "orchestration/local/jars.toml").touch()
    assert checkout.setup() == ["jars"]
    assert checkout.setup() == []


def test_another_source_makes_both_anew(checkout: Checkout) -> None:
    checkout.change("pipelines/engine/jvm/ReusingRocksDBStateStoreProvider.scala", r"\Z", "// changed\n")
    assert checkout.setup() == ["jars", "archive"]
    assert checkout.setup() == []


@pytest.mark.slow
def test_an_extra_is_installed_when_it_is_named_and_kept_until_others_are(checkout: Checkout) -> None:
    def synced() -> list[str]:
        return re.findall(r"\S+\.lock", (checkout.folder / "synced").read_text())

    assert synced() == ["requirements.lock"]
    assert checkout.setup("EXTRAS=postgres") == ["packages"]
    assert synced() == ["requirements.lock", "requirements-postgres.lock"]
    assert checkout.setup() == []
    checkout.change("requirements.lock", r"^typer==\S+", "typer==99.0")
    assert checkout.setup() == ["packages"]
    assert synced() == ["requirements.lock", "requirements-postgres.lock"]
    assert checkout.setup("EXTRAS=") == ["packages"]
    assert synced() == ["requirements.lock"]
    assert checkout.setup() == []


@pytest.mark.slow
def test_a_set_up_without_the_archive_ends_well_and_the_next_one_tries_again(checkout: Checkout) -> None:
    spoilt = checkout.folder / "spoilt"
    spoilt.touch()
    (checkout.folder / checkout.made()[1]).unlink()
    assert checkout.setup() == ["archive"]
    assert checkout.setup() == ["archive"]
    assert checkout.setup("ARCHIVE=0") == []
    spoilt.unlink()
    assert checkout.setup() == ["archive"]
    assert checkout.setup() == []


@pytest.mark.slow
def test_of_two_first_set_ups_at_once_the_second_waits_and_does_nothing(tmp_path: Path) -> None:
    checkout, hold = Checkout(tmp_path), tmp_path / "hold"
    hold.touch()
    with checkout.start(*SETUP) as first:
        try:
            until("the first does not make .venv", (tmp_path / "venvs").exists, 30, poll_s=0.01)
            with checkout.start(*SETUP) as second:
                try:
                    assert second.stdout is not None
                    assert second.stdout.readline() == "waiting for another set-up of this checkout\n"
                finally:
                    hold.unlink()
        finally:
            hold.unlink(missing_ok=True)
    assert (first.returncode, second.returncode) == (0, 0)
    assert (tmp_path / "venvs").read_text() == "venv\n"
    assert (tmp_path / "did").read_text().splitlines() == ["packages", "jars", "archive"]
