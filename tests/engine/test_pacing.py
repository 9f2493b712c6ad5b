"""Each state of a release has its pace: soon for what is read, seldom for what is not."""

from __future__ import annotations

import pytest

from pipelines.engine.pacing import pace_of
from pipelines.model.entries import ReleaseState
from pipelines.settings import Settings


@pytest.mark.parametrize(
    ("state", "every_s"), [("live", 0.18), ("hydrating", 0.9), ("failed", 0.9), ("ready", 2.0), ("standby", 2.0)]
)
def test_what_is_read_has_its_results_soon_and_what_waits_leaves_the_cores_to_it(
    state: ReleaseState, every_s: float
) -> None:
    pace = pace_of(Settings(), state, throttled=False)
    assert pace.every_s(0.05, full=False) == pytest.approx(every_s)
    # history is read without a pause
    assert pace.every_s(0.05, full=True) == (2.0 if state in ("ready", "standby") else 0.0)


def test_a_replay_with_a_limit_of_its_own_starts_a_batch_a_second() -> None:
    assert pace_of(Settings(), "live", throttled=True).every_s(0.05, full=True) == 1.0
    assert pace_of(Settings(trigger_s=0.3), "live", throttled=True).every_s(0.05, full=True) == 0.3


def test_without_a_target_only_the_triggers_count() -> None:
    settings = Settings(target_latency_s=0.0, trigger_s=0.3)
    for state in ("live", "hydrating"):
        assert pace_of(settings, state, throttled=False).every_s(9.0, full=False) == 0.3
