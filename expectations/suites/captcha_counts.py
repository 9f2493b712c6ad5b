"""What holds for the counts of captcha, whatever the logs."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"browser_hash": "string", "actions": "bigint"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("browser_hash"),
        base.at_least("actions", 0),
        base.volume(inputs),
    ]
