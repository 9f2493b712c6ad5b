"""Who may ask the broker for the time, and give signs of life: with the rights of a role, and without."""

from __future__ import annotations

import pytest

from pipelines.errors import Refused
from pipelines.kafka.acls import Role, rights
from pipelines.kafka.clock import BrokerClock, now_ms
from pipelines.kafka.topics import HEARTBEATS, ensure_topic
from pipelines.model.names import HEARTBEATS_TOPIC
from tests.security.access import allow
from tests.security.guarded import ADMIN, Guarded

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(("role", "told"), [("driver", True), ("operator", True), ("follower", False)])
def test_the_rights_of_a_role_are_enough_to_be_told_the_time(guarded: Guarded, role: Role, told: bool) -> None:
    ensure_topic(guarded.settings("admin", ADMIN), HEARTBEATS_TOPIC, 1, HEARTBEATS)
    user = f"time-{role}"
    guarded.add(user)
    allow(guarded, user, rights(role, "clocks", inputs=("trades",), groups=("readers",)))
    clock = BrokerClock(guarded.settings(user), own=lambda: 5)
    before = now_ms()
    found = clock.now_ms()
    assert before <= found <= now_ms() if told else found == 5
    if told:
        clock.say(b"a sign")
    else:
        with pytest.raises(Refused, match="Kafka refuses"):
            clock.say(b"a sign")
