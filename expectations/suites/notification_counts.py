"""What holds for every result of notification-counts, whatever the notifications."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"user": "string", "window_start": "string", "notifications": "bigint"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    advance_s = int(inputs.app_settings.get("advance_s", 60))
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("user", "window_start"),
        base.pattern(
            "window_start",
            r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$",
            name="window_start readable",
            detail="window_start is UTC like 2013-03-01T14:30:00Z",
        ),
        base.rows(
            "windows aligned",
            f"unix_seconds(try_to_timestamp(window_start)) % {advance_s} = 0",
            detail=f"windows start at whole multiples of {advance_s} s",
        ),
        base.at_least("notifications", 1),
        base.volume(inputs),
    ]
