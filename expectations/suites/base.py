"""What suites are made of: named checks, and functions that build the common ones.

A suite is data: what it needs of Great Expectations is loaded when a check is run. Dagster lists the checks of each
suite whenever a run starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from expectations.verdict import VOLUME_TOLERANCE

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteInputs:
    """What a suite is built for; the fields are those of a GateRequest."""

    live_rows: int | None = None
    late_dropped: int = 0
    volume_tolerance: float = VOLUME_TOLERANCE
    app_settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A named check. `detail`: what is expected or, without an expectation, why the check is skipped. `expectation`
    makes it. `columns`: of the check of the schema, what it expects, column -> Spark type.
    """

    name: str
    detail: str
    expectation: Callable[[], Expectation] | None
    columns: Mapping[str, str] = field(default_factory=dict)


Suite = Callable[[SuiteInputs], Sequence[Check]]


def skipped(name: str, reason: str) -> Check:
    return Check(name=name, detail=reason, expectation=None)


def not_empty() -> Check:
    return Check(
        name="not empty",
        detail="at least one row",
        expectation=partial(_row_count, 1),
    )


def schema(columns: Mapping[str, str]) -> Check:
    """Exactly these columns, in order, with these Spark SQL types (`bigint`, `decimal(8,2)`)."""
    ddl = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    return Check(
        name="schema", detail=f"columns {ddl}, in this order", expectation=partial(_schema, ddl), columns=columns
    )


def not_null(*columns: str) -> list[Check]:
    """Checks for null. A field that is missing or can't be parsed is null, too."""
    return [
        rows(f"{column} not null", f"`{column}` IS NOT NULL", detail=f"{column} is never null") for column in columns
    ]


def unique(*columns: str, name: str = "key unique") -> Check:
    """Ignores rows in which one of `columns` is null: other checks find those."""
    names = ", ".join(f"`{column}`" for column in columns)
    there = " AND ".join(f"`{column}` IS NOT NULL" for column in columns)
    query = f"SELECT {names}, count(*) AS rows FROM {{batch}} WHERE {there} GROUP BY {names} HAVING rows > 1"
    return no_rows(name, query, detail=f"no two rows have the same {', '.join(columns)}")


def at_least(column: str, minimum: int) -> Check:
    return rows(f"{column} in range", f"`{column}` >= {minimum}", detail=f"{column} is {minimum} or more")


def over(column: str, bound: float) -> Check:
    """Over `bound`, and finite: NaN sorts above every other number."""
    return rows(
        f"{column} in range",
        f"`{column}` > {bound:g} AND `{column}` < double('Infinity')",
        detail=f"{column} is over {bound:g}, and finite",
    )


def pattern(column: str, regex: str, *, name: str, detail: str) -> Check:
    """Values match `regex` (Java), which should be anchored."""
    return rows(name, f"`{column}` RLIKE r'{regex}'", detail=detail)


def rows(name: str, condition: str, *, detail: str) -> Check:
    """`condition`, Spark SQL in ANSI mode, holds for each row; null counts as true."""
    return Check(name=name, detail=detail, expectation=partial(_rows, condition))


def no_rows(name: str, query: str, *, detail: str) -> Check:
    """`query`, Spark SQL in ANSI mode, selects from `{batch}` the rows that must not exist."""
    return Check(name=name, detail=detail, expectation=partial(_no_rows, query))


def volume(inputs: SuiteInputs) -> Check:
    """The number of rows, compared with the live release's at the same cut. Skipped without a live release."""
    name = "volume against live"
    if inputs.live_rows is None:
        return skipped(name, "there is no live release to compare the number of rows with")
    low = math.floor(inputs.live_rows * (1 - inputs.volume_tolerance))
    high = math.ceil(inputs.live_rows * (1 + inputs.volume_tolerance))
    return Check(
        name=name,
        detail=f"{low} to {high} rows: the live release has {inputs.live_rows}, plus or minus "
        f"{inputs.volume_tolerance:.0%}",
        expectation=partial(_row_count, low, high),
    )


def _row_count(low: int, high: int | None = None) -> Expectation:
    from great_expectations.expectations import ExpectTableRowCountToBeBetween

    return ExpectTableRowCountToBeBetween(min_value=low, max_value=high)


def _schema(ddl: str) -> Expectation:
    from expectations.rows import ExpectSchema

    return ExpectSchema(schema_ddl=ddl)


def _rows(condition: str) -> Expectation:
    from expectations.rows import ExpectRows

    return ExpectRows(condition=condition)


def _no_rows(query: str) -> Expectation:
    from expectations.rows import ExpectNoRows

    return ExpectNoRows(unexpected_rows_query=ExpectNoRows.counted(query))
