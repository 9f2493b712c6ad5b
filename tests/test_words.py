"""Nothing is decided by what is printed: the words of plans, stages, errors and alerts may change freely."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("orchestration", "pipelines", "expectations", "demo", "benchmarks")
# what holds text for people, as a variable or an attribute, and what makes it
SAID = {
    "actor", "asked", "description", "detail", "error", "failure", "failures", "fix", "line", "lines", "message", "note", "notes", "said", "text",
    "title", "told", "undo", "warning", "warnings", "what", "words",
}  # fmt: skip
MAKE = {"describe", "repr", "steps", "str", "told", "words"}
SEARCH = {
    "count",
    "endswith",
    "find",
    "index",
    "partition",
    "removeprefix",
    "removesuffix",
    "rpartition",
    "split",
    "startswith",
}
MATCH = {"findall", "finditer", "fullmatch", "match", "search", "sub"}
# parts of plans that are only shown, and what else is called so
SHOWN = {"facts", "tables", "warnings"}
_A_WORD = re.compile("[A-Za-z]{3}")

# function -> why it reads text
ALLOWED = {
    "orchestration/commands/audit.py:_opened": "shows it",
    "orchestration/defs/resources.py:by_dagster": "an older version's entries have nothing else",
    "orchestration/local/broker.py:_warnings": "the broker's log, which is shown",
    "orchestration/local/preflight.py:parse_java_version": "Java's words",
    "orchestration/operations/comparing/database.py:_told": "DuckDB's words, of which there is no code; they choose advice",
    "orchestration/operations/plans/older_requests.py:_position": "an older version's journal has nothing else",
    "orchestration/operations/plans/older_requests.py:_reset": "an older version's journal has nothing else",
    "orchestration/operations/plans/older_requests.py:in_words": "an older version's journal has nothing else",
    "orchestration/operations/plans/plan.py:_from_journal": "shows it",
    "orchestration/operations/plans/positions.py:before_now": "what an operator has typed",
    "orchestration/operations/plans/positions.py:from_file": "what an operator has written",
    "orchestration/operations/plans/positions.py:until_of": "what an operator has typed",
    "pipelines/bucket_failures.py:_kind": "Arrow's words of AWS's codes, of which it has no attribute",
    "pipelines/engine/causes.py:_of_spark": "the plan and the line of a column in Spark's errors, to shorten what is shown",
    "pipelines/engine/causes.py:_ends": "Python's tracebacks in Spark's errors, to shorten what is shown",
    "pipelines/engine/causes.py:cause": "Python's tracebacks in Spark's errors, to shorten what is shown",
    "pipelines/engine/yarn.py:told": "the log of a container in YARN's words, to shorten what is shown",
    "pipelines/engine/source_ends.py:__init__": "the name of a source of Spark's, of which nothing else comes to Python",
    "pipelines/processes.py:rss_bytes": "a field of the kernel's",
    "benchmarks/fleet.py:pss_bytes": "a field of the kernel's",
    "pipelines/kafka/client.py:_made": "librdkafka's words, in which it may quote a password",
    "pipelines/kafka/failures.py:_tls_fix": "OpenSSL's words, of which there are no codes",
    "pipelines/kafka/failures.py:failure": "librdkafka's words, of which there is no code",
    "pipelines/kafka/failures.py:unavailable": "librdkafka's words, of which there is no code",
    "pipelines/kafka/login.py:_pem": "the head of a key's file",
    "pipelines/model/entries.py:rate": "numbers by their names",
    "pipelines/engine/topology.py:_sql": "Spark's text of an expression, which is shown",
    "pipelines/secrets.py:masked": "masks secrets in what is shown",
}


def is_said(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SAID
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in MAKE
        case ast.Subscript(value=value):
            return is_said(value)
        case _:
            return False


def is_worded(node: ast.expr, constants: Collection[str] = ()) -> bool:
    """Whether it is a literal with a word in it, or one of the module's `constants` that are."""
    match node:
        case ast.Constant(value=str(text)):
            return _A_WORD.search(text) is not None
        case ast.JoinedStr(values=parts) | ast.Tuple(elts=parts):
            return any(is_worded(part, constants) for part in parts)
        case ast.Name(id=name):
            return name in constants
        case _:
            return False


def constants_of(module: ast.Module) -> set[str]:
    """The names of the module's own texts with a word in them."""
    found: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.Assign) and is_worded(node.value):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def is_name_of_an_operation(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr="operation") | ast.Attribute(value=ast.Attribute(attr="opened"), attr="name"):
            return True
        case _:
            return False


def reads_text(node: ast.AST, constants: Collection[str]) -> bool:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others) if not any(
            isinstance(o, ast.Is | ast.IsNot) for o in ops
        ):
            sides = [left, *others]
            worded = any(is_worded(side, constants) for side in sides)
            return worded and any(is_said(s) or is_name_of_an_operation(s) for s in sides)
        case ast.Call(func=ast.Attribute(value=value, attr=name), args=[first, *others]):
            searched = name in SEARCH and is_said(value) and is_worded(first, constants)
            searched = searched or (name in MATCH and any(map(is_said, [first, *others])))
            shown = name == "get" and isinstance(first, ast.Constant) and first.value in SHOWN | {"asked"}
            return searched or shown or (name == "get" and isinstance(value, ast.Attribute) and value.attr in SHOWN)
        case ast.Subscript(value=ast.Attribute(attr=name), ctx=ast.Load()):
            return name in SHOWN
        case _:
            return False


def readers(source: str) -> Iterator[str]:
    """The functions that read text, each as often as it does."""

    module = ast.parse(source)
    constants = constants_of(module)

    def visit(node: ast.AST, function: str) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef):
            function = node.name
        if reads_text(node, constants):
            yield function
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(module, "")


@pytest.mark.slow
def test_no_decision_reads_what_is_printed() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{function}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for function in readers(path.read_text())
    }
    # what no longer reads text isn't allowed any more
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "line",
    [
        'if "could not" in line: send()',
        'if error.what == "it is gone": go()',
        'if str(error).startswith("no broker"): wait()',
        'if describe(stage) == f"want {name} stopped": kill()',
        'if plan.facts["asked"] == words: resume()',
        'asked = opened.plan.get("facts", {}).get("asked")',
        'if plan.operation == "retire": refuse()',
        'if operation.opened.name != "promote": skip()',
        "if COULD_NOT in line: send()",
        "if said.startswith((COULD_NOT, 'it is gone')): send()",
        'if re.search("could not", line): send()',
        "if _FAILED.match(str(error)): send()",
        'if entry.actor.endswith(" (by night)"): skip()',
    ],
)
def test_one_that_would_is_found(line: str) -> None:
    assert set(readers(f'COULD_NOT = "could not"\ndef decide():\n    {line}')) == {"decide"}


@pytest.mark.parametrize(
    "line",
    [
        'if stage.state == "retired": refuse()',
        "if plan.operation is Kind.RETIRE: refuse()",
        'facts["evidence"] = "none"',
        'if error.what: say(f"{error.what}; {error.fix}")',
        'name, _, value = line.partition("=")',
    ],
)
def test_what_is_data_or_only_shown_is_not(line: str) -> None:
    assert not list(readers(line))
