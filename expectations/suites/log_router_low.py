"""What holds for the low-priority logs of log-router, whatever the logs."""

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
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null("level", "logger_name", "message", "topic", "partition", "offset"),
        base.unique("topic", "partition", "offset", name="each log once"),
        base.rows("no errors", "level <> 'ERROR'", detail="the level is not ERROR"),
        base.volume(inputs),
    ]
