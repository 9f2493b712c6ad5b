"""What holds for every result of top-stocks, whatever the gains."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"day": "string", "rank": "int", "ticker": "string", "gain_percent": "decimal(16,4)"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    top = int(inputs.app_settings.get("top", 10))
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("day", "rank"),
        base.unique("day", "ticker", name="a ticker once a day"),
        base.pattern("day", r"^\d{4}-\d{2}-\d{2}$", name="day form", detail="day is a date like 2013-03-01"),
        base.rows("rank in range", f"rank BETWEEN 1 AND {top}", detail=f"ranks are 1 to {top}"),
        base.no_rows(
            "ranks complete",
            "SELECT day, count(*) AS ranks, max(rank) AS last FROM {batch} GROUP BY day HAVING ranks < last",
            detail="a day has all ranks from 1 to its last",
        ),
        base.no_rows(
            "best first",
            "WITH followed AS (SELECT *, lag(gain_percent) OVER (PARTITION BY day ORDER BY rank) AS better FROM {batch}) "
            "SELECT day, rank, better, gain_percent FROM followed WHERE gain_percent > better",
            detail="no ticker gained more than one with a better rank",
        ),
        base.volume(inputs),
    ]
