"""What holds for the high-priority logs of log-router, whatever the logs."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "level": "string",
    "logger_name": "string",
    "message": "string",
    "app_name": "string",
    "thread": "string",
    "timestamp": "timestamp",
    "context": "map<string,string>",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return logs(inputs, base.rows("errors only", "level = 'ERROR'", detail="the level is ERROR"))


def logs(inputs: SuiteInputs, level: Check) -> Sequence[Check]:
    """What holds for both results of log-router, and what holds for the `level` of one."""
    return [
        # it may be empty: all logs may be errors, or none
        base.schema(COLUMNS),
        *base.not_null("level", "logger_name", "message", "topic", "partition", "offset"),
        base.unique("topic", "partition", "offset", name="each log once"),
        level,
        base.volume(inputs),
    ]
