"""What holds for every result of beaconing, whatever the connections."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "host": "string",
    "destination": "string",
    "window_start": "string",
    "contacts": "int",
    "interval_s": "decimal(12,3)",
    "deviation": "decimal(9,4)",
    "bytes": "decimal(29,0)",
}
_START = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    settings = {"window_s": 600, "advance_s": 120, "threshold": 8, "rarely": 30, "jitter": 0.1, **inputs.app_settings}
    window_s, advance_s, jitter = settings["window_s"], settings["advance_s"], settings["jitter"]
    threshold, rarely = settings["threshold"], settings["rarely"]
    return [
        # it may be empty: a network without beacons has no alerts
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("host", "destination", "window_start", name="one alert per window"),
        base.pattern(
            "window_start", _START, name="window_start readable", detail="window_start is UTC like 2013-03-01T14:30:00Z"
        ),
        base.rows(
            "windows aligned",
            f"unix_seconds(try_to_timestamp(window_start)) % {advance_s} = 0",
            detail=f"each window starts at a whole multiple of {advance_s} s",
        ),
        base.rows(
            "contacts in range",
            f"contacts BETWEEN {threshold} AND {rarely}",
            detail=f"a host has {threshold} to {rarely} contacts with a destination to which it rarely talks",
        ),
        base.rows(
            "deviation in range",
            # the deviation is rounded to a ten-thousandth
            f"deviation BETWEEN 0 AND {jitter} + 0.00005",
            detail=f"no interval differs from the mean by more than {jitter:.4g} of the mean",
        ),
        base.rows(
            "contacts fit into the window",
            # two contacts are whole seconds apart; the interval is rounded to a thousandth
            f"interval_s >= 1 AND (interval_s - 0.001) * (contacts - 1) < {window_s}",
            detail=f"the intervals between the contacts are at least 1 s, and together less than {window_s} s",
        ),
        base.volume(inputs),
    ]
