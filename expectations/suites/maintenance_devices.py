"""What holds for the devices of maintenance, whatever the signals."""

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
_LIMITS = ("expected", "lower", "upper")


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*(column for column in COLUMNS if column not in _LIMITS)),
        base.unique("device"),
        base.pattern(
            "at",
            r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$",
            name="time form",
            detail="at is a time in UTC like 2013-03-01T14:30:00Z",
        ),
        base.rows(
            "learning without limits",
            "(pattern = 'learning') = (expected IS NULL) AND (lower IS NULL) = (expected IS NULL) "
            "AND (upper IS NULL) = (expected IS NULL)",
            detail="a device that is learning has no limits; every other device has all of them",
        ),
        base.rows(
            "pattern follows limits",
            # limits are rounded
            "CASE pattern WHEN 'above' THEN signals >= upper WHEN 'below' THEN signals <= lower "
            "WHEN 'within' THEN signals BETWEEN lower AND upper ELSE pattern = 'learning' END",
            detail="the pattern is above, below or within the limits, or learning",
        ),
        base.rows(
            "signals add up",
            "signals = restarts + dropped_packets + forces",
            detail="signals is the sum of all three kinds",
        ),
        base.volume(inputs),
    ]
