"""When the supervisor starts what is down: wanted, run by nobody, and not in a loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestration.operations.overview import ReleaseStatus
from orchestration.operations.supervise import Attempt, to_start
from pipelines.model.registry import Release, ReleaseState, Wanted
from tests.engine.test_lease import SPEC, beat

NOW_MS = 10_000_000


def status(*, wanted: Wanted = "running", state: ReleaseState = "live", holder: str | None = None) -> ReleaseStatus:
    return ReleaseStatus(release=Release(spec=SPEC, wanted=wanted, state=state), beat=None, holder=holder, live=False)


def test_what_is_wanted_and_down_is_started() -> None:
    assert to_start([status()], {}, NOW_MS) == ["sums.v1"]


@pytest.mark.parametrize(
    "other",
    [status(wanted="stopped"), status(holder="process 1"), status(state="failed"), status(state="retired"),
     status(state="aborted"), replace(status(holder="process 1"), beat=beat(0.1))],
)  # fmt: skip
def test_what_is_stopped_held_or_over_is_left_alone(other: ReleaseStatus) -> None:
    assert to_start([other], {}, NOW_MS) == []


@pytest.mark.parametrize(("count", "pause_s"), [(1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (50, 300)])
def test_the_pause_doubles_up_to_five_minutes(count: int, pause_s: int) -> None:
    attempts = {"sums.v1": Attempt(count=count, at_ms=NOW_MS)}
    assert to_start([status()], attempts, NOW_MS + pause_s * 1000 - 1) == []
    assert to_start([status()], attempts, NOW_MS + pause_s * 1000) == ["sums.v1"]


def test_another_release_has_a_pause_of_its_own() -> None:
    other = ReleaseStatus(
        release=Release(spec=SPEC.model_copy(update={"release": "sums.v2"}), wanted="running", state="live"),
        beat=None,
        holder=None,
        live=False,
    )
    assert to_start([status(), other], {"sums.v1": Attempt(count=1, at_ms=NOW_MS)}, NOW_MS) == ["sums.v2"]
