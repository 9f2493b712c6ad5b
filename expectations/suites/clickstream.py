"""What holds for every result of clickstream, whatever the clicks, profiles and searches."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "user": "string",
    "page": "string",
    "at": "string",
    "terms": "string",
    "age": "int",
    "gender": "string",
    "interests": "array<string>",
    "zip": "string",
}
# what is known of a user may be nothing
_ALWAYS = ("user", "page", "at")


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*_ALWAYS),
        base.no_rows(
            "one profile at a time",
            "SELECT user, at FROM {batch} GROUP BY user, at "
            "HAVING count(DISTINCT struct(age, gender, interests, zip)) > 1",
            detail="all clicks of a user at one time have the same profile",
        ),
        base.pattern(
            "at",
            r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$",
            name="time form",
            detail="at is a time in UTC, to the millisecond",
        ),
        base.volume(inputs),
    ]
