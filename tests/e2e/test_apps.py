"""Apps as releases: checked, made live, and compared with themselves in larger batches while input comes."""

from __future__ import annotations

import pytest

from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.diff import diff
from tests.e2e.cluster import LARGE, SMALL, Cluster, assert_same_again

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize(
    ("app", "records", "per_second", "at_least"),
    [
        # at least so many keys
        ("bookings", 2_000, 20, 3_000),
        ("browser-windows", 6_000, 100, 1_000),
        ("latest-value", 6_000, 100, 100),
        # three minutes, of which two are over
        ("load-percentile", 18_000, 100, 80),
        ("product-views", 6_000, 100, 100),
        ("search-results", 8_000, 100, 100),
        ("shoe-store", 3_000, 50, 9),
        ("store-inventory", 6_000, 100, 50),
    ],
)
def test_an_app_passes_its_suite_and_differs_in_nothing_from_itself(
    cluster: Cluster, app: str, records: int, per_second: int, at_least: int
) -> None:
    assert_same_again(cluster, app, records, per_second, at_least)


def test_by_the_wall_clock_a_release_gives_other_windows_and_its_plan_warns(cluster: Cluster) -> None:
    cluster.load("browser-windows", 2_000, 100)
    cluster.hydrate("browser-windows", 1, batch=SMALL)
    cluster.make_live("browser-windows", 1)
    with cluster.trials():
        wall = plan_stage(cluster.context(), "browser-windows", version=3, settings={"clock": "wall"})
    assert any("may give a different result in a replay" in warning for warning in wall.warnings)
    cluster.run(wall)
    cluster.hydrate("browser-windows", 3, batch=LARGE)
    found = diff(cluster.context(), "browser-windows.v3")
    assert found.identical == 0 and found.only_live > 500 and found.only_new > 0
    cluster.stop("browser-windows.v1", "browser-windows.v3")
