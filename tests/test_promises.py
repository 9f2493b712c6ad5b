"""docs/reliability.md promises nothing without a test: each one that it names exists, and CI runs it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
PROMISES, _, NOT_PROMISED = PAGE.partition("\n## What is not promised\n")
NAMED = re.compile(r"`([\w./-]+\.py::[\w:]+)`")
TESTS = sorted(set(NAMED.findall(PAGE)))
# of marks that pytest knows by itself; those of the project say where a test runs
NEVER = {"skip", "skipif", "xfail"}


def targets(ci: str) -> list[str]:
    """The targets of tests that CI makes, each on a line of its own."""
    return re.findall(r"^make (test\S*)$", ci, re.M)


def selections(makefile: str, names: list[str]) -> list[Expression]:
    """What these targets select by marks."""
    found = [re.search(rf'^{name}: .*\n\t.* -m (?:"([^"]+)"|(\S+)) ', makefile, re.M) for name in names]
    return [Expression.compile(each[1] or each[2]) for each in found if each]


TARGETS = targets((ROOT / ".ci" / "run").read_text())
SELECTIONS = selections((ROOT / "Makefile").read_text(), TARGETS)


@cache
def marks_in(source: str) -> dict[str, frozenset[str]]:
    """Marks of each test of a module, by `name` or `Class::name`; not those of single parameters."""
    module = ast.parse(source)
    values = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return dict(_tests(module.body, "", frozenset(_own(module.body, values)), values))


def _tests(
    body: list[ast.stmt], prefix: str, above: frozenset[str], values: Mapping[str, ast.expr]
) -> Iterator[tuple[str, frozenset[str]]]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        marks = above.union(*(_marks(decorator, values) for decorator in node.decorator_list))
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _tests(node.body, f"{prefix}{node.name}::", marks | _own(node.body, values), values)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield prefix + node.name, marks


def _own(body: list[ast.stmt], values: Mapping[str, ast.expr]) -> set[str]:
    """Marks by a body's `pytestmark`."""
    return {
        mark
        for node in body
        if isinstance(node, ast.Assign) and [getattr(t, "id", None) for t in node.targets] == ["pytestmark"]
        for mark in _marks(node.value, values)
    }


def _marks(node: ast.expr, values: Mapping[str, ast.expr]) -> set[str]:
    if isinstance(node, ast.Call):
        return _marks(node.func, values)
    if isinstance(node, ast.List | ast.Tuple):
        return {mark for each in node.elts for mark in _marks(each, values)}
    if isinstance(node, ast.Name) and node.id in values:
        return _marks(values[node.id], values)
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark":
        return {node.attr}
    return set()


def is_run(marks: frozenset[str], selected: Sequence[Expression] | None = None) -> bool:
    """Whether CI runs a test with these marks. `selected`: what is run; None: what CI runs."""
    selections = SELECTIONS if selected is None else selected
    return not marks & NEVER and any(each.evaluate(lambda name, /, **_: name in marks) for each in selections)


def promises(text: str) -> dict[str, str]:
    """What stands below each heading of the third level, by that heading."""
    found = {}
    for section in re.split(r"^### ", text, flags=re.M)[1:]:
        title, _, body = re.split(r"^## ", section, maxsplit=1, flags=re.M)[0].partition("\n")
        found[title] = body.strip()
    return found


def fault_of(name: str) -> str | None:
    """What is wrong with a named test."""
    file, _, test = name.partition("::")
    path = ROOT / file
    if not re.fullmatch(r"tests/(.*/)?test_\w+\.py", file) or not path.is_file():
        return f"there is no file of tests {file}"
    marks = marks_in(path.read_text())
    if test not in marks:
        return f"there is no {test} in {file}"
    if not is_run(marks[test]):
        return f"CI does not run {name}: its marks are {sorted(marks[test])}"
    return None


def fault_in(title: str, body: str) -> str | None:
    """What is wrong with a promise."""
    said = re.fullmatch(r"(\S.*)\n\n\*\*Holds when\*\*: (\S.*)\n\n\*\*Shown by\*\*:\n\n(.+)", body, re.S)
    if said is None:
        return f"a promise says what, when it holds, and what shows it: {title}"
    if not all(re.fullmatch(rf"- {NAMED.pattern}", line) for line in said[3].splitlines()):
        return f"the list names tests, and nothing else: {title}"
    return None


def test_the_tests_that_the_page_names_are_there_and_are_run() -> None:
    assert [fault for name in TESTS if (fault := fault_of(name))] == []


def test_each_promise_names_a_test() -> None:
    assert [fault for each in promises(PROMISES).items() if (fault := fault_in(*each))] == []


def test_the_page_is_read() -> None:
    assert NOT_PROMISED and len(TESTS) > 100 and len(promises(PROMISES)) > 60
    assert TARGETS == ["test", "test-ui", "test-long", "test-cluster"] and len(SELECTIONS) == len(TARGETS)


def test_what_is_not_run_is_seen() -> None:
    source = """
import pytest

slow = [pytest.mark.long, pytest.mark.timeout(60)]
pytestmark = pytest.mark.broker


def test_plain(): ...


@pytest.mark.ui
def test_with_a_browser(): ...


@pytest.mark.skipif(True, reason="no")
def test_skipped(): ...


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
def test_of_parameters(kills): ...


class TestStory:
    pytestmark = slow

    def test_told(self): ...


class Other:
    def test_of_no_collected_class(self): ...


def helper(): ...
"""
    found = marks_in(source)
    assert found == {
        "test_plain": {"broker"},
        "test_with_a_browser": {"broker", "ui"},
        "test_skipped": {"broker", "skipif"},
        "test_of_parameters": {"broker", "parametrize"},
        "TestStory::test_told": {"broker", "long", "timeout"},
    }
    assert {name for name, marks in found.items() if not is_run(marks)} == {"test_skipped"}
    no_browser = selections('test: setup\n\t@pytest -m "not ui" $(PYTEST)\n', ["test"])
    assert not is_run(found["test_with_a_browser"], no_browser) and is_run(found["test_plain"], no_browser)


def test_a_test_that_is_not_there_or_not_run_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fault_of("tests/test_none.py::test_a") == "there is no file of tests tests/test_none.py"
    assert fault_of("tests/conftest.py::broker") == "there is no file of tests tests/conftest.py"
    assert fault_of("tests/test_promises.py::test_none") == "there is no test_none in tests/test_promises.py"
    assert fault_of("tests/test_promises.py::test_the_page_is_read") is None
    # as if CI ran no tests
    monkeypatch.setitem(globals(), "SELECTIONS", [])
    assert "CI does not run" in str(fault_of("tests/test_promises.py::test_the_page_is_read"))


def test_a_promise_without_a_test_is_seen() -> None:
    page = "# A\n\n## B\n\n### All\n\nAll.\n\n**Holds when**: always.\n\n**Shown by**:\n\n- trust us\n\n## C\n\nMore.\n"
    [(title, body)] = promises(page).items()
    assert "names tests, and nothing else" in str(fault_in(title, body))
    shown = "- `tests/test_a.py::test_a`\n- `tests/test_b.py::TestB::test_b`"
    assert fault_in(title, body.replace("- trust us", shown)) is None
    assert "nothing else" in str(fault_in(title, body.replace("- trust us", f"{shown}\n- `test_c`")))
    assert "when it holds" in str(fault_in(title, shown))
    assert "when it holds" in str(fault_in(title, body.replace("- trust us", "")))
