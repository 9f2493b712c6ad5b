"""What holds for the low-priority logs of log-router, whatever the logs."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs
from expectations.suites.log_router_high import logs


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return logs(inputs, base.rows("no errors", "level <> 'ERROR'", detail="the level is not ERROR"))
