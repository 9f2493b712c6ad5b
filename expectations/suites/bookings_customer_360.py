"""What holds for the rows of bookings about customers, whatever the reservations."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "guest": "string",
    "booking": "string",
    "hotel": "string",
    "nights": "int",
    "spent": "decimal(10,2)",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("topic", "partition", "offset", name="each reservation once"),
        base.at_least("spent", 0),
        base.volume(inputs),
    ]
