"""bookings, as its departments see it: each hears of a reservation within seconds, and a replay mails no guest again."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from pipelines.apps.bookings import bookings
from pipelines.kafka.client import producer
from tests.e2e.cluster import LARGE, Cluster, Follower

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

RELEASE = "bookings.v1"
# the machine may be busy, so the fastest of a few reservations counts
SECONDS, TRIES = 10, 3


def told(follower: Follower, *, replay: bool) -> Counter[str]:
    """Reservation -> how often a department hears of it: as new, or as a replay. Known by its record in the input."""
    return Counter(x["headers"]["source"] for x in follower.lines() if x["replay"] is replay)


def reserve(cluster: Cluster, booking: str) -> None:
    client = producer(cluster.settings)
    value = {
        "booking": booking, "guest": "ada", "email": "ada@example.com", "hotel": "Grand", "arrives": "2026-02-27",
        "nights": 3, "price": 412.5,
    }  # fmt: skip
    client.produce("bookings", json.dumps(value), booking)
    assert client.flush(20) == 0


def hears(follower: Follower, booking: str) -> bool:
    return any(json.loads(x["value"])["booking"] == booking for x in follower.lines())


def seconds_until_all_hear(cluster: Cluster, departments: list[Follower], booking: str) -> float:
    began = time.monotonic()
    reserve(cluster, booking)
    cluster.until(f"no department hears of {booking}", lambda: all(hears(each, booking) for each in departments))
    return time.monotonic() - began


def test_departments_hear_within_seconds_and_a_replay_is_not_mailed_again(cluster: Cluster) -> None:
    cluster.load("bookings", 500, per_second=20)
    cluster.hydrate("bookings", 1, batch=LARGE)
    cluster.make_live("bookings", 1)
    cluster.settle(RELEASE, "bookings")
    with ExitStack() as stack:
        departments = [
            stack.enter_context(Follower(cluster, "bookings", f"{name}-department", name)) for name in bookings.results
        ]
        for each in departments:
            each.await_end(RELEASE)
        assert min(seconds_until_all_hear(cluster, departments, f"b-now-{n}") for n in range(TRIES)) < SECONDS
        before = [told(each, replay=False) for each in departments]
        assert all(counts and set(counts.values()) == {1} for counts in before)

        said = cluster.cli("reset", RELEASE, "--to-earliest", "--output", "keep", "--stop", "--execute")
        assert said.code == 0, said.text
        seconds_until_all_hear(cluster, departments, "b-later")
        for each, first in zip(departments, before, strict=True):
            cluster.until("the replay has not come", lambda each=each, first=first: told(each, replay=True) == first)
            # who skips what is marked, as the mailer does, acts once on each reservation
            [(_, once)] = (told(each, replay=False) - first).items()
            assert once == 1 and not first - told(each, replay=False)
    cluster.stop(RELEASE)
