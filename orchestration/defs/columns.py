"""The columns of an app's results as Dagster shows them: those that its suites expect, and those that a release has.

A key column has the tag `switchyard/key`. If an app has several results, the name of the result comes first, as in
`counts.product`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dagster import MetadataValue, TableColumn, TableSchema

from expectations.suites import SuiteInputs, checks_of
from pipelines.model.app import App
from pipelines.model.registry import Release

KEY_TAG = "switchyard/key"
# Dagster's name of this metadata
_SCHEMA = "dagster/column_schema"


def expected_columns(app: App) -> dict[str, Any]:
    """The columns that the suites of an app expect: they are known without Spark. Nothing for an app without suites."""
    found = []
    for result, suite in app.suites.items():
        checks = checks_of(suite, SuiteInputs(app_settings=app.settings))
        types = next((check.columns for check in checks if check.columns), {})
        found += _columns(result, types, app.results[result].key)
    return _metadata(found)


def columns_of(release: Release) -> dict[str, Any]:
    """The columns that the results of a release have, as its trial found them."""
    outputs = release.spec.outputs
    return _metadata([each for name, result in outputs.items() for each in _columns(name, result.types, result.key)])


def _columns(result: str, types: Mapping[str, str], key: Iterable[str]) -> list[TableColumn]:
    """The columns of one result. `types`: column -> its Spark type."""
    keys = set(key)
    return [
        TableColumn(f"{result}.{name}" if result else name, kind, tags={KEY_TAG: ""} if name in keys else None)
        for name, kind in types.items()
    ]


def _metadata(columns: list[TableColumn]) -> dict[str, Any]:
    return {_SCHEMA: MetadataValue.table_schema(TableSchema(columns=columns))} if columns else {}
