"""Our own expectations, and the metric behind them.

Each of GX's row checks costs a query for examples, even if there are none. All `ExpectRows` of a suite take one pass
over the data; only a failing one asks for examples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.execution_engine import SparkDFExecutionEngine
from great_expectations.expectations import UnexpectedRowsExpectation
from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.expectations.metrics.metric_provider import metric_partial
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from pyspark.sql import Column
from pyspark.sql import functions as F

SAMPLE_ROWS = 5
_AGAINST = "rows_against"


def _result(against: int, sample: Sequence[str]) -> dict[str, Any]:
    """What GX keeps of an evaluation. We read `details`; the Data Docs show `observed_value`."""
    such_as = f", such as {sample[0]}" if sample else ""
    return {
        "success": against == 0,
        "result": {
            "observed_value": f"{against} rows against it{such_as}",
            "details": {_AGAINST: against, "sample": list(sample)},
        },
    }


def rows_against(result: Mapping[str, Any]) -> tuple[int | None, tuple[str, ...]]:
    """How many rows violate an expectation of this module, and examples; (None, ()) for any other expectation."""
    details = result.get("details") or {}
    return details.get(_AGAINST), tuple(details.get("sample", ()))


class RowsAgainst(TableMetricProvider):
    """The number of rows for which a condition is false, as an aggregate: GX combines these into one query."""

    metric_name = "switchyard.rows_against"
    value_keys = ("condition",)

    @metric_partial(
        engine=SparkDFExecutionEngine,
        partial_fn_type=MetricPartialFunctionTypes.AGGREGATE_FN,
        domain_type=MetricDomainTypes.TABLE,
    )
    def _spark(
        cls,
        execution_engine: SparkDFExecutionEngine,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any],
    ) -> tuple[Column, dict[str, Any], dict[str, Any]]:
        against = ~F.expr(metric_value_kwargs["condition"])
        # resolve the condition alone first: an error in it, such as a missing column, must not fail the whole query
        execution_engine.get_domain_records(metric_domain_kwargs).select(against)
        return F.count_if(against), metric_domain_kwargs, {}


class ExpectRows(BatchExpectation):
    """`condition`, Spark SQL, is false for no row. A row for which it is null passes, as in SQL."""

    condition: str

    metric_dependencies: ClassVar[tuple[str, ...]] = (RowsAgainst.metric_name,)
    success_keys: ClassVar[tuple[str, ...]] = ("condition",)

    def _validate(
        self,
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any] | None = None,
        execution_engine: Any = None,
    ) -> dict[str, Any]:
        against: int = metrics[RowsAgainst.metric_name]
        if not against:
            return _result(0, [])
        rows = execution_engine.get_domain_records({}).where(~F.expr(self.condition))
        return _result(against, rows.limit(SAMPLE_ROWS).toJSON().collect())


class ExpectNoRows(UnexpectedRowsExpectation):
    """A query over `{batch}`, made by `counted`, returns nothing."""

    # the base class would run the query a second time, to count
    metric_dependencies: ClassVar[tuple[str, ...]] = ("unexpected_rows_query.table",)

    @staticmethod
    def counted(query: str) -> str:
        """`query` with its number of rows as a column."""
        return f"SELECT *, count(*) OVER () AS {_AGAINST} FROM ({query})"

    def _validate(
        self,
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any] | None = None,
        execution_engine: Any = None,
    ) -> dict[str, Any]:
        rows: list[dict[str, Any]] = metrics["unexpected_rows_query.table"]
        sample = [
            json.dumps({name: value for name, value in row.items() if name != _AGAINST}, default=str)
            for row in rows[:SAMPLE_ROWS]
        ]
        return _result(rows[0][_AGAINST] if rows else 0, sample)


class ExpectSchema(BatchExpectation):
    """The columns are `schema_ddl`, by name, type and order. (GX's own type check ignores a decimal's precision.)"""

    schema_ddl: str

    metric_dependencies: ClassVar[tuple[str, ...]] = ("table.column_types",)
    success_keys: ClassVar[tuple[str, ...]] = ("schema_ddl",)

    def _validate(
        self,
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any] | None = None,
        execution_engine: Any = None,
    ) -> dict[str, Any]:
        types = metrics["table.column_types"]
        found = ", ".join(f"{column['name']} {column['type'].simpleString()}" for column in types)
        return {"success": found == self.schema_ddl, "result": {"observed_value": found}}
