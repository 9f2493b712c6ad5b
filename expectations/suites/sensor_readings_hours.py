"""What holds for the hours of sensor-readings, whatever the readings."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "device": "string",
    "hour": "string",
    "lowest": "double",
    "highest": "double",
    "average": "double",
    "readings": "bigint",
}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("device", "hour"),
        base.pattern(
            "hour", r"^\d{4}-\d\d-\d\dT\d\d:00:00Z$", name="hour form", detail="hour is UTC like 2013-03-01T14:00:00Z"
        ),
        base.at_least("readings", 1),
        base.rows(
            "average in range",
            # a sum of doubles is rounded
            "average BETWEEN lowest - 1e-9 * abs(lowest) AND highest + 1e-9 * abs(highest)",
            detail="the average is not below the lowest reading, nor above the highest",
        ),
        base.rows(
            "one reading is all three", "readings > 1 OR lowest = highest", detail="one reading is lowest and highest"
        ),
        base.volume(inputs),
    ]
