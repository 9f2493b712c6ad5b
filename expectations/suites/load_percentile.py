"""What holds for every result of load-percentile, whatever the requests."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "host": "string",
    "minute": "string",
    "requests": "bigint",
    "p99_ms": "int",
    "average_ms": "decimal(14,4)",
}
_SECONDS = "unix_seconds(try_to_timestamp({}))"


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null("host", "minute", "requests", "average_ms"),
        base.unique("host", "minute"),
        base.pattern(
            "minute",
            r"^\d{4}-\d\d-\d\dT\d\d:\d\d:00Z$",
            name="minute readable",
            detail="minute is the start of a minute in UTC, like 2013-03-01T14:30:00Z",
        ),
        base.at_least("requests", 0),
        base.rows(
            "p99_ms null only without requests",
            "(p99_ms IS NULL) = (requests = 0)",
            detail="p99_ms is null only in a minute without requests",
        ),
        base.at_least("p99_ms", 0),
        base.at_least("average_ms", 0),
        minutes_follow_on(),
        base.volume(inputs),
    ]


def minutes_follow_on() -> Check:
    """The requests of a minute are in the average of the next, so it has a row, unless it is not over yet."""
    query = f"""
        WITH followed AS (
          SELECT *, lead(minute) OVER (PARTITION BY host ORDER BY minute) AS next FROM {{batch}})
        SELECT host, minute, requests, next FROM followed
        WHERE requests > 0 AND {_SECONDS.format("next")} - {_SECONDS.format("minute")} > 60"""
    return base.no_rows("minutes follow on", query, detail="after a minute with requests comes the next minute")
