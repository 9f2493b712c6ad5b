"""Apps with states of their own, or with several results, as releases: like `test_apps`."""

from __future__ import annotations

import pytest

from tests.e2e.cluster import Cluster, assert_same_again

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize(
    ("app", "records", "per_second", "at_least"),
    [
        # at least so many keys or records
        ("captcha", 8_000, 100, 500),
        ("clickstream", 8_000, 100, 1_000),
        ("close-notifications", 6_000, 100, 2_000),
        ("count-windows", 6_000, 100, 5_000),
        ("daily-gains", 6_000, 100, 9),
        ("page-stats", 20_000, 100, 200),
        ("product-counter", 6_000, 100, 5_000),
        ("sensor-readings", 6_000, 50, 100),
        ("word-count", 3_000, 100, 1_000),
    ],
)
def test_an_app_passes_its_suites_and_differs_in_nothing_from_itself(
    cluster: Cluster, app: str, records: int, per_second: int, at_least: int
) -> None:
    assert_same_again(cluster, app, records, per_second, at_least)


def test_devices_are_judged_alike_in_small_batches_and_in_large_ones(cluster: Cluster) -> None:
    # windows of 20 minutes: a device is judged after 8 hours, not after a day
    assert_same_again(cluster, "maintenance", 32_000, 1, 50, window_s=1_200)
