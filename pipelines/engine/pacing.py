"""Which pace a release keeps, by its state and the settings."""

from __future__ import annotations

from pipelines.model.entries import ReleaseState
from pipelines.model.pace import THROTTLED_S, Pace
from pipelines.settings import Settings

# how long a record should wait for its results, on average, while the release has yet to become ready
UNREAD_TARGET_S = 0.5


def pace_of(settings: Settings, state: ReleaseState, *, throttled: bool) -> Pace:
    """`throttled`: its replay has a limit of records per batch of its own."""
    if state in ("ready", "standby"):
        return Pace(least_s=settings.standby_trigger_s)
    target_s = settings.target_latency_s
    if state != "live" and target_s:
        # no one reads it yet
        target_s = max(target_s, UNREAD_TARGET_S)
    return Pace(least_s=settings.trigger_s or (THROTTLED_S if throttled else 0.0), target_s=target_s)
