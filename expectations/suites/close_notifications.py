"""What holds for every result of close-notifications, whatever the events."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"user": "string", "message": "string", "topic": "string", "partition": "int", "offset": "bigint"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        # it may be empty: nobody may have closed the page
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("topic", "partition", "offset", name="each event once"),
        base.rows(
            "message as agreed",
            "message = 'You are not currently viewing Facebook.'",
            detail="the message is the one sentence that users get",
        ),
        base.volume(inputs),
    ]
