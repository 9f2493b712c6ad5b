"""What holds for every result of store-inventory, whatever the events."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"store": "string", "stock": "map<string,bigint>"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("store"),
        base.rows("a SKU at least", "size(stock) > 0", detail="a store has had at least one SKU"),
        base.rows(
            "quantities not null",
            "NOT exists(map_values(stock), quantity -> quantity IS NULL)",
            detail="each SKU has a quantity",
        ),
        base.rows(
            "SKUs in order",
            "map_keys(stock) = array_sort(map_keys(stock))",
            detail="SKUs are in one order, so that the same stock is the same record",
        ),
        base.volume(inputs),
    ]
