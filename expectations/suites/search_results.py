"""What holds for every result of search-results, whatever the searches and clicks."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"query": "string", "result": "string", "clicks": "bigint", "rank": "int"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        # it may be empty: nobody may have clicked
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("query", "result"),
        base.at_least("clicks", 1),
        ranks_follow_clicks(),
        base.volume(inputs),
    ]


def ranks_follow_clicks() -> Check:
    """Each rank is one more than the number of results of the query with more clicks."""
    query = """
        WITH ranked AS (SELECT *, rank() OVER (PARTITION BY query ORDER BY clicks DESC) AS expected FROM {batch})
        SELECT * FROM ranked WHERE rank != expected"""
    return base.no_rows(
        "ranks follow clicks", query, detail="rank is one more than the number of the query's results with more clicks"
    )
