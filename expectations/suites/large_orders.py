"""What holds for every result of large-orders, whatever the orders."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "customer": "string",
    "order_id": "string",
    "sales_person": "string",
    "amount": "decimal(14,2)",
    "ordered_at": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
}
_ORDERED_AT = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    # an order without a customer is still an order
    required = [column for column in COLUMNS if column != "customer"]
    return [
        # it may be empty: no order may be that large
        base.schema(COLUMNS),
        *base.not_null(*required),
        base.unique("topic", "partition", "offset", name="each order once"),
        base.over("amount", float(inputs.app_settings.get("over_dollars", 10_000))),
        base.pattern(
            "ordered_at", _ORDERED_AT, name="ordered_at readable", detail="ordered_at is UTC to the millisecond"
        ),
        base.volume(inputs),
    ]
