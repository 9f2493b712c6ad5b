"""Consumer groups: only one without members is deleted, and what one has committed can be asked at any time."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from orchestration.local.broker import EmbeddedBroker
from pipelines.engine.member import GroupMember
from pipelines.errors import Unavailable
from pipelines.kafka.offsets import GroupInUse, delete_group, group_names, group_offsets
from pipelines.settings import Settings
from tests.conftest import FreshTopic
from tests.shared.ports import port_of
from tests.shared.waiting import until

pytestmark = pytest.mark.broker


def test_a_group_is_deleted_once_its_member_has_left(broker: Settings, fresh_topic: FreshTopic) -> None:
    group = fresh_topic()
    member = GroupMember(broker, group, [group])

    def refused() -> bool:
        try:
            delete_group(broker, group)
        except GroupInUse as error:
            assert f"group {group} can't be deleted" in error.what
            return True
        return False

    def held() -> bool:
        # a broker that has just started doesn't know its groups yet
        with suppress(Unavailable):
            return refused()
        return False

    try:
        # until the member has joined, there is no group
        until("no member holds the group", held, timeout_s=60)
    finally:
        member.close()
    until("the member has not left", lambda: not refused(), timeout_s=60)
    assert group not in group_names(broker)


def test_what_a_group_has_committed_can_be_asked_of_a_cluster_that_has_just_started(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path / "state", broker_port=port_of("groups"), broker_heap_mb=256)
    own = EmbeddedBroker(settings)
    own.start()
    try:
        # the first question about a group. No broker is its coordinator yet, at which librdkafka's admin client ends the
        # process
        assert group_offsets(settings, "nobody") == {}
    finally:
        own.stop()
