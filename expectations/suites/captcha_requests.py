"""What holds for the requests of captcha, whatever the logs."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "browser_hash": "string",
    "actions": "bigint",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("topic", "partition", "offset", name="each action once"),
        base.unique("browser_hash", "actions", name="each count once"),
        base.at_least("actions", int(inputs.app_settings.get("ask_at", 5))),
        base.volume(inputs),
    ]
