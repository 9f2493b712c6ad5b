"""The steps of an app's function, as Spark planned them: what `switchyard show` prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.engine.jvm.classes import class_name

# Spark's name of a node -> the step in words. A Project only computes columns; it is left out
_STEPS: dict[str, Callable[[Any], str]] = {
    "Aggregate": lambda node: f"aggregate by {_names(node.groupingExpressions())}",
    "Deduplicate": lambda node: f"drop duplicates by {_names(node.keys())}",
    "DeduplicateWithinWatermark": lambda node: f"drop duplicates within the watermark by {_names(node.keys())}",
    "Filter": lambda node: f"where {_sql(node.condition())}",
    "FlatMapGroupsInPandasWithState": lambda node: f"own state by {_names(node.groupingAttributes())}",
    "Generate": lambda node: _sql(node.generator()),
    "Join": lambda node: f"{node.joinType().sql().lower()} join{_condition(node)}",
    "MapInPandas": lambda node: "map frames in Python",
    "TransformWithState": lambda node: "join as of each row's time",
    "TransformWithStateInPandas": lambda node: f"own state by {_key_of(node)}",
    "Union": lambda node: "union",
}
_WITH_STATE = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "FlatMapGroupsInPandasWithState",
    "Join",
    "TransformWithState",
    "TransformWithStateInPandas",
}
# an attribute's number in a plan's text
_NUMBER = re.compile(r"#\d+L?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step. `depth`: 0 for the last one; what a step reads is one deeper. `state`: whether Spark keeps state for it."""

    depth: int
    does: str
    state: bool = False

    def as_json(self) -> dict[str, Any]:
        return {"depth": self.depth, "does": self.does, "state": self.state}


def topology(result: Any, inputs: Mapping[str, Any]) -> list[Step]:
    """The steps from the result back to the inputs. `result`, `inputs` by name: analyzed plans of Spark, as py4j has them."""
    return list(_steps(result, inputs, 0, parent=""))


def _steps(node: Any, inputs: Mapping[str, Any], depth: int, parent: str) -> Iterator[Step]:
    for name, plan in inputs.items():
        if node.equals(plan):
            yield Step(depth=depth, does=f"input {name}")
            return
    kind = class_name(node)
    told = _STEPS.get(kind)
    if told is not None and not _of_a_window(node, kind, parent):
        yield Step(depth=depth, does=told(node), state=kind in _WITH_STATE and not _with_a_table(node, kind))
        depth += 1
    children = node.children()
    # the second child of an app's own processor is its initial state
    count = 1 if kind.startswith("TransformWithState") else children.size()
    for number in range(count):
        yield from _steps(children.apply(number), inputs, depth, kind)


def _with_a_table(node: Any, kind: str) -> bool:
    """Whether a join has a side that never changes: Spark then keeps no row of the other one."""
    return kind == "Join" and not (node.left().isStreaming() and node.right().isStreaming())


def _of_a_window(node: Any, kind: str, parent: str) -> bool:
    """Whether Spark made this filter for a window, whose rows need a time."""
    return kind == "Filter" and parent == "Aggregate" and class_name(node.condition()) == "IsNotNull"


def _names(expressions: Any) -> str:
    return ", ".join(_sql(expressions.apply(number)) for number in range(expressions.size())) or "nothing"


def _key_of(node: Any) -> str:
    """The grouping columns come first in the plan below a processor."""
    columns = node.children().apply(0).output()
    return ", ".join(columns.apply(number).name() for number in range(node.groupingAttributesLen()))


def _condition(node: Any) -> str:
    condition = node.condition()
    return f" on {_sql(condition.get())}" if condition.isDefined() else ""


def _sql(expression: Any) -> str:
    """An expression as SQL, without a pair of brackets around the whole."""
    text = _NUMBER.sub("", str(expression.sql()))
    return text[1:-1] if text.startswith("(") and _closes_last(text) else text


def _closes_last(text: str) -> bool:
    """Whether the bracket that opens first closes at the end."""
    level = 0
    for at, character in enumerate(text):
        level += {"(": 1, ")": -1}.get(character, 0)
        if level == 0:
            return at == len(text) - 1
    return False
