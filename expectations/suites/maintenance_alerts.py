"""What holds for the alerts of maintenance, whatever the signals."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "device": "string",
    "at": "string",
    "pattern": "string",
    "signals": "bigint",
    "expected": "decimal(18,3)",
    "lower": "decimal(18,3)",
    "upper": "decimal(18,3)",
    "restarts": "bigint",
    "dropped_packets": "bigint",
    "forces": "bigint",
}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("device", "at", name="one alert at a time"),
        base.pattern(
            "at",
            r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$",
            name="time form",
            detail="at is a time in UTC like 2013-03-01T14:30:00Z",
        ),
        base.rows(
            "outside the limits",
            # limits are rounded
            "CASE pattern WHEN 'above' THEN signals >= upper WHEN 'below' THEN signals <= lower ELSE false END",
            detail="an alert is about an hour that is above or below its limits",
        ),
        base.rows(
            "signals add up",
            "signals = restarts + dropped_packets + forces",
            detail="signals is the sum of all three kinds",
        ),
        base.volume(inputs),
    ]
