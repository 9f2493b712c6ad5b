"""What holds for the zip codes of page-stats, whatever the clicks and profiles."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"zip": "string", "minute": "string", "views": "bigint"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("zip", "minute"),
        base.pattern(
            "minute",
            r"^\d{4}-\d\d-\d\dT\d\d:\d\d:00Z$",
            name="minute form",
            detail="minute is UTC like 2013-03-01T14:30:00Z",
        ),
        base.at_least("views", 1),
        base.volume(inputs),
    ]
