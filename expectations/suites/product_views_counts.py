"""What holds for the counts of product-views, whatever the views."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"product": "string", "views": "bigint"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("product"),
        base.at_least("views", 1),
        base.volume(inputs),
    ]
