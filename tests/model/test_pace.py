"""When the next batch starts: soon enough for what users want, and no sooner."""

from __future__ import annotations

import pytest

from pipelines.model.pace import COSTLY_S, LONGEST_PAUSE_S, Pace


@pytest.mark.parametrize(("batch_s", "every_s"), [(0.0, 0.3), (0.05, 0.2), (0.1, 0.1), (0.14, 0.14), (0.3, 0.3)])
def test_a_record_waits_as_long_as_wanted_on_average_or_as_little_as_batches_let_it(
    batch_s: float, every_s: float
) -> None:
    assert Pace(target_s=0.15).every_s(batch_s, full=False) == pytest.approx(every_s)


@pytest.mark.parametrize("batch_s", [0.01, 0.1, 1.0, 3.9])
def test_the_average_is_the_target_wherever_batches_are_short_enough(batch_s: float) -> None:
    every_s = Pace(target_s=6.0).every_s(batch_s, full=False)
    assert every_s / 2 + batch_s == pytest.approx(6.0)


def test_a_costly_batch_leaves_half_of_the_time_to_others() -> None:
    pace = Pace(target_s=0.15)
    assert pace.every_s(COSTLY_S, full=False) == COSTLY_S
    assert pace.every_s(0.8, full=False) == pytest.approx(1.6)
    # unless the target lets it pause for longer anyway
    assert Pace(target_s=3.0).every_s(0.8, full=False) == pytest.approx(4.4)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_batches_stay_as_small_as_the_load_lets_them(load: float) -> None:
    # each batch costs 0.2 s, and more for what has come since the one before
    pace, batch_s = Pace(target_s=0.15), 0.2
    for _ in range(200):
        batch_s = 0.2 + load * pace.every_s(batch_s, full=False)
    assert batch_s <= (0.2 + load * LONGEST_PAUSE_S) / (1 - load) + 0.01


def test_what_is_left_unread_does_not_wait_and_without_a_target_nothing_does() -> None:
    assert Pace(target_s=0.15).every_s(0.01, full=True) == 0.0
    assert Pace().every_s(9.0, full=False) == 0.0


@pytest.mark.parametrize("full", [True, False])
def test_batches_never_start_sooner_than_the_least_time(full: bool) -> None:
    assert Pace(least_s=2.0, target_s=0.15).every_s(0.01, full=full) == 2.0
    assert Pace(least_s=2.0).every_s(0.01, full=full) == 2.0
