"""What holds for the late readings of sensor-readings, whatever the readings."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "device": "string",
    "at": "string",
    "value": "double",
    "late_ms": "bigint",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    grace_s = int(inputs.app_settings.get("grace_s", 10_800))
    return [
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("topic", "partition", "offset", name="each reading once"),
        base.pattern(
            "at",
            r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$",
            name="time form",
            detail="at is a time in UTC, to the millisecond",
        ),
        base.rows("too late", f"late_ms > {grace_s * 1000}", detail=f"a late reading is more than {grace_s} s late"),
        base.volume(inputs),
    ]
