"""Finds what a replay would not repeat, in the plan that Spark makes of an app's function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pipelines.engine.jvm.classes import class_name, java_class
from pipelines.errors import Refused
from pipelines.model.app import App

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NO_REPLAY = "a replay would not give the same result"
_BY_ORDER = 'F.struct("event_time", "partition", "offset")'
_SORTED = 'sort it within the aggregate, as in F.sort_array(F.collect_list("{0}"))'
# Spark's name of an aggregate whose value depends on the order of rows -> what to use instead, with a place for its column
_ORDERED = {
    "AnyValue": f'use F.min_by("{{0}}", {_BY_ORDER})',
    "CollectList": _SORTED,
    "CollectSet": f"{_SORTED}; F.size(F.collect_set(...)) needs no order",
    "First": f'use F.min_by("{{0}}", {_BY_ORDER})',
    "Last": f'use F.max_by("{{0}}", {_BY_ORDER})',
    "ListAgg": "give it an order: listagg({0}, ',') WITHIN GROUP (ORDER BY {0})",
    "Mode": 'let it choose the lowest of several: F.mode("{0}", deterministic=True)',
}
# of a list of values, these are the same in any order
_LISTS, _WITHOUT_ORDER = {"CollectList", "CollectSet"}, {"Size", "SortArray"}
_FIRST_ROWS = (
    "takes the first rows that come ({}): which ones these are depends on batches",
    "choose rows by their columns, as with where; or count them in state of your own (transformWithStateInPandas)",
)
_ONE_BATCH = (
    "gets the rows of one batch ({}), not all rows of a group",
    "use agg; or keep state of your own (transformWithStateInPandas)",
)
# Spark's name of a node on a stream -> what is wrong with it, with a place for its name; and what to do instead
_STEPS: dict[str, tuple[str, tuple[str, str]]] = {
    "FlatMapCoGroupsInArrow": ("applyInArrow", _ONE_BATCH),
    "FlatMapCoGroupsInPandas": ("applyInPandas", _ONE_BATCH),
    "FlatMapGroupsInArrow": ("applyInArrow", _ONE_BATCH),
    "FlatMapGroupsInPandas": ("applyInPandas", _ONE_BATCH),
    "GlobalLimit": ("limit", _FIRST_ROWS),
    "Offset": ("offset", _FIRST_ROWS),
}
# Spark's names of leaves whose rows are in the plan, and so in the code
_ROWS = {"LocalRelation", "LogicalRDD", "OneRowRelation", "Range"}
# the name that Spark gives the sources of a trial
_INPUT = "memory"
# aggregates that add up
_SUMS = {
    "Average",
    "Corr",
    "CovPopulation",
    "CovSample",
    "StddevPop",
    "StddevSamp",
    "Sum",
    "VariancePop",
    "VarianceSamp",
}
_FLOATS = {"double", "float"}


def refuse_other_sources(app: App, result: DataFrame) -> None:
    """Raises Refused if the function reads a stream, or a topic of Kafka's, that is none of the app's inputs."""
    for leaf in _leaves(result):
        kind = class_name(leaf)
        foreign = leaf.isStreaming() and not is_input(leaf)
        of_kafka = kind == "LogicalRelation" and class_name(leaf.relation()) == "KafkaRelation"
        if foreign or of_kafka:
            raise Refused(
                f"the function of app {app.name} reads a {'stream' if foreign else 'topic'} that is not one of its inputs: "
                "no position of it is kept, so " + _NO_REPLAY,
                fix="name it in the app's inputs; as_of joins with one that is a Changelog",
            )


def refuse_what_a_replay_changes(app: App, result: DataFrame, *, clock_allowed: bool) -> None:
    """Raises Refused if a value in `result` depends on chance, on the order of rows, on batches or on the clock."""
    plan = result._jdf.queryExecution().analyzed()
    for node in nodes(plan):
        if node.isStreaming() and (found := _STEPS.get(class_name(node))) is not None:
            name, (wrong, instead) = found
            raise Refused(f"the function of app {app.name} {wrong.format(name)}; {_NO_REPLAY}", fix=instead)
    _refuse_order(app, plan)
    if not plan.deterministic():
        parts = (part for node in nodes(plan) for part in _parts(node.expressions()))
        names = ", ".join(dict.fromkeys(_called(part) for part in parts if _is_fickle(part)))
        raise Refused(
            f"the function of app {app.name} is not deterministic ({names}): {_NO_REPLAY}",
            fix="derive such values from the input's columns",
        )
    clock = java_class("org.apache.spark.sql.catalyst.trees.TreePattern").CURRENT_LIKE()
    # a batch that is run again has the time of its plan; only a replay has another
    if not clock_allowed and plan.containsPattern(clock):
        raise Refused(
            f"the function of app {app.name} reads the clock (current_timestamp, current_date, now or the like): {_NO_REPLAY}",
            fix="use event_time, the time of the record",
        )


def _refuse_order(app: App, plan: Any) -> None:
    """Raises Refused for an aggregate whose value depends on the order of rows."""
    for node in nodes(plan):
        for part in _aggregates(node):
            if (instead := _ORDERED.get(class_name(part))) is not None and not _has_an_order(part):
                raise Refused(
                    f"the function of app {app.name} has {_called(part)}, whose value depends on the order in which rows come: "
                    + _NO_REPLAY,
                    fix=instead.format(next(_names_in(part), "column")),
                )


def notes(result: DataFrame) -> list[str]:
    """What the author should know of `result`, each once: a replay may give another result, and only the author knows
    whether it does.
    """
    said: list[str] = []
    for node in nodes(result._jdf.queryExecution().analyzed()):
        kind = class_name(node)
        if kind == "DeduplicateWithinWatermark":
            said.append(
                "dropDuplicatesWithinWatermark depends on batches if a key returns after more than the watermark's delay: "
                "use it only for keys that never do"
            )
        elif kind == "Aggregate":
            said += [note for part in _aggregates(node) if (note := _note_on(part)) is not None]
        elif not node.isStreaming() and node.children().isEmpty() and kind not in _ROWS:
            said.append(
                f"the function reads {_origin(node)}, which is not frozen: a replay reads what it holds at that time. "
                "Write its rows into the code, or give each change of it another name"
            )
    return list(dict.fromkeys(said))


def nodes(plan: Any) -> Iterator[Any]:
    """The nodes of a plan of Spark's, the last step first."""
    yield plan
    for child in _items(plan.children()):
        yield from nodes(child)


def is_input(leaf: Any) -> bool:
    """Whether a node of a plan reads an input of a trial."""
    return class_name(leaf) == "StreamingRelationV2" and leaf.sourceName() == _INPUT


def pandas_aggregate(node: Any) -> str | None:
    """The name of a pandas UDF that a node of a stream aggregates by, as `mean()`; None if it has none."""
    return next((_called(part) for part in _aggregates(node) if class_name(part) == "PythonUDAF"), None)


def _leaves(result: DataFrame) -> Iterator[Any]:
    return (node for node in nodes(result._jdf.queryExecution().analyzed()) if node.children().isEmpty())


def _aggregates(node: Any) -> Iterator[Any]:
    """The parts of what a node of a stream computes, if it is an aggregate; without lists whose order doesn't matter."""
    if class_name(node) == "Aggregate" and node.isStreaming():
        yield from _parts(node.aggregateExpressions())


def _parts(expressions: Any) -> Iterator[Any]:
    """The expressions and all that is in them, but of a list that is sorted or counted, only what is in it."""
    for expression in _items(expressions):
        children = expression.children()
        if class_name(expression) in _WITHOUT_ORDER and class_name(children.apply(0)) == "AggregateExpression":
            function = children.apply(0).aggregateFunction()
            if class_name(function) in _LISTS:
                children = function.children()
        else:
            yield expression
        yield from _parts(children)


def _has_an_order(aggregate: Any) -> bool:
    match class_name(aggregate):
        case "ListAgg":
            return not aggregate.orderExpressions().isEmpty()
        case "Mode":
            return bool(aggregate.reverseOpt().isDefined())
        case _:
            return False


def _note_on(aggregate: Any) -> str | None:
    """What to know of an aggregate whose value differs little where rows come in another order."""
    if class_name(aggregate) == "ApproximatePercentile":
        return f"{_called(aggregate)} is an approximation that depends on the order of rows: use percentile, or give diff a --tolerance"
    if class_name(aggregate) in _SUMS and aggregate.children().apply(0).dataType().typeName() in _FLOATS:
        return (
            f"{_called(aggregate)} adds up floating-point numbers, whose last digits depend on the order of rows: "
            "cast them to decimal, or give diff a --tolerance"
        )
    return None


def _is_fickle(expression: Any) -> bool:
    """Whether an expression is nondeterministic by itself."""
    return not expression.deterministic() and all(child.deterministic() for child in _items(expression.children()))


def _called(expression: Any) -> str:
    """What an author calls it: `first(page)`, `rand()`."""
    name = expression.prettyName()
    if class_name(expression) in ("PythonUDF", "PythonUDAF"):
        return f"{expression.name()}()"
    return f"{name}({', '.join(dict.fromkeys(_names_in(expression)))})"


def _names_in(expression: Any) -> Iterator[str]:
    """The columns that an expression reads."""
    return (part.name() for part in _parts(expression.children()) if class_name(part) == "AttributeReference")


def _origin(leaf: Any) -> str:
    """Where the rows of a leaf come from, as far as Spark says it: a file's path, a table's name."""
    relation = leaf.relation() if class_name(leaf) == "LogicalRelation" else None
    if relation is not None and class_name(relation) == "HadoopFsRelation":
        return ", ".join(path.toString() for path in _items(relation.location().rootPaths()))
    return str(leaf.nodeName())


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(number) for number in range(sequence.size()))
