"""What holds for the totals of shoe-store, whatever the events."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"store": "string", "in_stock": "decimal(29,0)", "taken": "decimal(38,2)", "transactions": "bigint"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("store"),
        base.rows("one store", "store = 'all'", detail="there is one row, for the whole store"),
        base.at_least("transactions", 0),
        base.volume(inputs),
    ]
