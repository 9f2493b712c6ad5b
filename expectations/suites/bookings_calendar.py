"""What holds for the calendar of bookings, whatever the reservations."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "hotel": "string",
    "booking": "string",
    "arrives": "date",
    "leaves": "date",
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
        base.rows("leaves after arriving", "leaves >= arrives", detail="nobody leaves before arriving"),
        base.volume(inputs),
    ]
