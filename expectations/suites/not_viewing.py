"""What holds for every result of not-viewing, whatever the ticks and events."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "user": "string",
    "message": "string",
    "at": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        # it may be empty: everybody may be viewing the page
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("topic", "partition", "offset", name="each tick once"),
        base.rows(
            "message as agreed",
            "message = 'You are not currently viewing Facebook.'",
            detail="the message is the one sentence that users get",
        ),
        base.pattern(
            "at",
            r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$",
            name="time form",
            detail="at is a time in UTC, to the millisecond",
        ),
        base.volume(inputs),
    ]
