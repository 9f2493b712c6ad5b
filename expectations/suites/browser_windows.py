"""What holds for every result of browser-windows, whatever the actions and by whatever clock."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"browser_hash": "string", "window_start": "string", "actions": "bigint"}
_START = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    advance_s = int(inputs.app_settings.get("advance_s", 2))
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("browser_hash", "window_start"),
        base.pattern(
            "window_start", _START, name="window_start readable", detail="window_start is UTC like 2013-03-01T14:30:00Z"
        ),
        base.rows(
            "windows aligned",
            f"unix_seconds(try_to_timestamp(window_start)) % {advance_s} = 0",
            detail=f"each window starts at a whole multiple of {advance_s} s",
        ),
        base.at_least("actions", 1),
        base.volume(inputs),
    ]
