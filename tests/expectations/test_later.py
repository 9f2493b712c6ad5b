"""A module that a library imports, and that nobody uses, is not loaded."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from expectations.later import DISTRIBUTIONS, Later, imported_later


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported."""
    name = "a_slow_module"
    (tmp_path / f"{name}.py").write_text("found = object()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, name, None)
    del sys.modules[name]
    return name


def test_a_module_is_loaded_when_one_of_its_names_is_asked_for(slow: str) -> None:
    with imported_later(slow):
        module = importlib.import_module(slow)
    assert isinstance(module, Later) and slow not in sys.modules
    found = module.found
    assert sys.modules[slow].found is found
    with pytest.raises(AttributeError, match="lost"):
        _ = module.lost


def test_whoever_imports_it_later_gets_the_module_itself(slow: str) -> None:
    with imported_later(slow):
        early = importlib.import_module(slow)
    module = importlib.import_module(slow)
    assert not isinstance(module, Later) and early.found is module.found


def test_a_module_that_is_loaded_already_stays(slow: str) -> None:
    module = importlib.import_module(slow)
    with imported_later(slow):
        assert importlib.import_module(slow) is module
    assert sys.modules[slow] is module


@pytest.mark.spark
def test_great_expectations_loads_what_compares_distributions_only_when_it_is_used() -> None:
    # in a process of its own: what this one has imported stays
    import subprocess

    lines = """
import sys
from expectations.later import DISTRIBUTIONS, imported_later
with imported_later(*DISTRIBUTIONS):
    import expectations.gate
assert not set(DISTRIBUTIONS) & set(sys.modules), "loaded by the import"
import scipy.stats
from great_expectations.expectations.core import expect_column_kl_divergence_to_be_less_than as module
assert module.stats.entropy is scipy.stats.entropy
assert module.alt.Chart([1]).mark_bar
"""
    subprocess.run([sys.executable, "-c", lines], check=True, timeout=120)
    assert set(DISTRIBUTIONS) == {"scipy.stats", "altair"}
