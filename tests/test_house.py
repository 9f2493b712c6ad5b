"""What holds for the repository as a whole."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from orchestration.catalog import find_apps
from tests.apps.lives import life_of, lives_of
from tests.e2e.test_lives import GROUPS, SHAPES

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# may import Dagster
DAGSTER = {"defs", "definitions"}


def locked(name: str) -> dict[str, str]:
    """Package -> version of a lock file; every one must carry a hash."""
    text = (ROOT / name).read_text()
    found = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        match = re.match(r"([a-z0-9-]+)==(\S+)", entry)
        assert match is not None, f"not pinned: {entry[:80]}"
        assert "--hash=sha256:" in entry, f"no hash: {match[1]}"
        found[match[1]] = match[2]
    return found


# locked with what the project itself needs, for the demo and the tests; each other extra has a lock file of its own
LOCKED_EXTRAS = {"demo"}
EXTRAS = PROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize("extra", [None, *sorted(EXTRAS)])
def test_every_direct_dependency_is_locked_at_its_version(extra: str | None) -> None:
    lock = locked("requirements.lock" if extra is None or extra in LOCKED_EXTRAS else f"requirements-{extra}.lock")
    project, groups = PROJECT["project"]["dependencies"], PROJECT["dependency-groups"]["dev"]
    for requirement in project + groups if extra is None else EXTRAS[extra]:
        match = re.match(r"([a-z0-9-]+)(?:\[[^]]*\])?(==|>=)([^,]+)", requirement)
        assert match is not None, f"no version: {requirement}"
        name, relation, version = match.groups()
        assert name in lock
        assert relation == ">=" or lock[name] == version


def test_only_who_asks_for_an_extra_gets_it() -> None:
    needed = " ".join(PROJECT["project"]["dependencies"])
    assert "bokeh" not in needed and "postgres" not in needed
    # with Postgres's client, and nothing that the project has already
    assert set(locked("requirements-postgres.lock")) == {"dagster-postgres", "psycopg2-binary"}
    assert "bokeh-sampledata" in locked("requirements.lock")


def test_the_installer_is_locked_at_one_version() -> None:
    assert locked("requirements-uv.lock") == {"uv": locked("requirements.lock")["uv"]}


def test_no_lock_file_names_a_host() -> None:
    for path in (*ROOT.glob("requirements*.lock"), ROOT / "orchestration/local/jars.toml"):
        assert "://" not in path.read_text()


def test_every_part_of_orchestration_is_kept_from_dagster() -> None:
    """A new package must be added to the contract of import-linter, or be one of the two that know Dagster."""
    [contract] = [
        c
        for c in PROJECT["tool"]["importlinter"]["contracts"]
        if "dagster" in c.get("forbidden_modules", []) and "orchestration.cli" in c["source_modules"]
    ]
    parts = {path.stem for path in (ROOT / "orchestration").iterdir() if path.suffix == ".py" or path.is_dir()}
    parts -= {"__init__", "__pycache__"} | DAGSTER
    assert {f"orchestration.{part}" for part in parts} <= set(contract["source_modules"])


def test_the_demo_is_of_the_size_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    from demo import run

    monkeypatch.delenv("DEMO_HISTORY", raising=False)
    importlib.reload(run)
    assert (run.HISTORY, run.RATE) == (1_000_000, 2_000)


MOST_LINES, MOST_LINES_OF_A_FUNCTION = 700, 60
CODE = [
    path
    for folder in ("pipelines", "expectations", "orchestration", "demo", "benchmarks", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef, *, command: bool) -> int:
    """Its lines. `command`: without its signature, which has all options of a command."""
    first = function.body[0].lineno if command else function.lineno
    return (function.end_lineno or 0) - first + 1


@pytest.mark.slow
def test_every_app_has_a_life_in_the_tests() -> None:
    missing = []
    for app in find_apps():
        try:
            life_of(app)
        except LookupError as error:
            missing.append(str(error))
    assert not missing, "\n".join(missing)
    lives = Counter(
        life.app.name for names in (SHAPES, *GROUPS.values()) for life in lives_of(names) if not life.only_read
    )
    assert lives == Counter(app.name for app in find_apps()), (
        "SHAPES and SHARED of tests/e2e/test_lives.py name an app twice"
    )


def test_modules_and_functions_can_be_read_at_once() -> None:
    long = []
    for path in CODE:
        text, name = path.read_text(), str(path.relative_to(ROOT))
        command = name.startswith("orchestration/commands/")
        if (lines := text.count("\n")) > MOST_LINES:
            long.append(f"{name}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if (lines := lines_of(node, command=command)) > MOST_LINES_OF_A_FUNCTION:
                long.append(f"{name}: {node.name} has {lines} lines")
    assert long == []


def test_no_two_modules_of_tests_listen_on_one_port() -> None:
    """But on that of `nobody`, on which nothing listens."""
    users: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        for name in re.findall(r"port_of\(['\"]([^'\"]+)['\"]\)", path.read_text()):
            users.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    assert {name: sorted(of) for name, of in users.items() if len(of) > 1 and name != "nobody"} == {}
    assert len(users) > 5
