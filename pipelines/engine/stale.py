"""Finds a table in which an older row of a key may replace a newer one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.engine.frames import key_schema
from pipelines.engine.repeats import is_input, nodes
from pipelines.engine.results import schemas_of, value_columns
from pipelines.model.app import App, Table


def stale_notes(app: App, result: Any, inputs: Mapping[str, Any], *, keeps_state: bool) -> list[str]:
    """What the author should know of each table of `result`, a DataFrame: rows of one key that come from several input
    partitions have no order, and nothing in the plan chooses one of them.

    `inputs`: source -> the analyzed plan of its frame. `keeps_state`: whether a step of the function keeps state; then it
    is that step which chooses.
    """
    if keeps_state:
        return []
    schemas = schemas_of(app, result.schema)
    return [
        _note(name, each, value_columns(each, schemas[name].names)[0])
        for name, each in app.results.items()
        if isinstance(each, Table) and not (name == "" and _has_one_partition(app, result, each.key, inputs))
    ]


def _note(name: str, table: Table, value: str) -> str:
    keys = ", ".join(f'"{each}"' for each in table.key)
    return (
        f"the table{f' {name}' if name else ''} has the row of a key that is written last. If rows of one key come from "
        "several input partitions, which one that is depends on where batches end. Take the newest by an aggregate: "
        f'groupBy({keys}).agg(F.max_by("{value}", F.struct("event_time", "partition", "offset")).alias("{value}"))'
    )


def _has_one_partition(app: App, result: Any, key: tuple[str, ...], inputs: Mapping[str, Any]) -> bool:
    """Whether all rows of a key come from one input partition, in its order: the key has the input's own key, or the
    partition, and there is one input.
    """
    plan = result._jdf.queryExecution().analyzed()
    read = [leaf for leaf in nodes(plan) if is_input(leaf)]
    if len(read) != 1 or len(inputs) != 1:
        return False
    [(source, given)] = inputs.items()
    own = dict(_columns(given))
    # Spark numbers columns: one that has been computed anew has another number
    numbers = {number for name, number in _columns(plan) if name in key}
    of_records = [field.name for field in key_schema(app.sources[source]).fields]
    return own["partition"] in numbers or (bool(of_records) and all(own[name] in numbers for name in of_records))


def _columns(plan: Any) -> Iterator[tuple[str, int]]:
    output = plan.output()
    for number in range(output.size()):
        column = output.apply(number)
        yield column.name(), column.exprId().id()
