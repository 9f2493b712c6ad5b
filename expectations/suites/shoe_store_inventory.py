"""What holds for the inventory of shoe-store, whatever the events."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "color": "string",
    "in_stock": "decimal(29,0)",
    "sold": "decimal(29,0)",
    "taken": "decimal(38,2)",
    "oversold": "boolean",
}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("color"),
        base.rows(
            "oversold flagged", "oversold = (in_stock < 0)", detail="a color without stock is flagged, no other is"
        ),
        base.volume(inputs),
    ]
