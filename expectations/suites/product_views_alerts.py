"""What holds for the alerts of product-views, whatever the views."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"product": "string", "views": "bigint"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    alert_at = int(inputs.app_settings.get("alert_at", 1000))
    return [
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("product", name="each product told once"),
        base.rows("told at the limit", f"views = {alert_at}", detail=f"an alert comes at {alert_at} views"),
        base.volume(inputs),
    ]
