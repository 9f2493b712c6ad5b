"""What holds for every result of latest-value, whatever the values."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"key": "string", "value": "bigint"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("key"),
        base.volume(inputs),
    ]
