"""What holds for every result of daily-gains, whatever the trades."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "ticker": "string",
    "day": "string",
    "open": "decimal(8,2)",
    "close": "decimal(8,2)",
    "lowest": "decimal(8,2)",
    "highest": "decimal(8,2)",
    "gain_percent": "decimal(16,4)",
}
# within what rounding to 4 decimals may do
_GAIN = "abs(gain_percent * open - (close - open) * 100) <= 0.0001 * abs(open)"


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null("ticker", "day", "open", "close", "lowest", "highest"),
        base.unique("ticker", "day"),
        base.pattern("day", r"^\d{4}-\d\d-\d\d$", name="day readable", detail="day is UTC like 2013-03-01"),
        base.rows("lowest in range", "lowest >= 0", detail="lowest is 0 or more"),
        base.rows(
            "open between lowest and highest",
            "open BETWEEN lowest AND highest",
            detail="open is between lowest and highest",
        ),
        base.rows(
            "close between lowest and highest",
            "close BETWEEN lowest AND highest",
            detail="close is between lowest and highest",
        ),
        base.rows(
            "gain null only if open is 0",
            "(gain_percent IS NULL) = (open = 0)",
            detail="gain_percent is null only if open is 0",
        ),
        base.rows("gain from open to close", _GAIN, detail="gain_percent is the gain from open to close"),
        base.volume(inputs),
    ]
