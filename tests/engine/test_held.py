"""A driver that can't read an entry that it must understand: it is held, and runs on once the entry is repaired."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestration.operations.execute import execute
from orchestration.operations.planning.repair import plan_repair
from orchestration.operations.planning.run import plan_stop
from orchestration.operations.supervising.overview import statuses
from pipelines.errors import Refused
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.log import FencedWriter
from pipelines.kafka.progress import newest_progress
from pipelines.model.names import REGISTRY_TOPIC
from pipelines.model.progress import Heartbeat
from pipelines.settings import Settings
from tests.reset.world import live_world

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_a_driver_holds_at_what_it_must_understand_and_goes_on_once_that_is_repaired(
    broker: Settings, spark: Any, tmp_path: Path
) -> None:
    with live_world(broker, spark, "count", tmp_path) as world:

        def said(state: str, lag: int) -> Heartbeat | None:
            beat = latest_heartbeats(world.settings).get(world.name)
            return beat if beat is not None and (beat.state, beat.lag_records) == (state, lag) else None

        newer = {"kind": "moved", "release": world.name, "actor": "ann", "must_understand": True}
        entries = [b"garbage", json.dumps(newer).encode()]
        FencedWriter(world.settings, REGISTRY_TOPIC, REGISTRY_TOPIC).append(lambda: entries)
        world.until("the driver does not hold", lambda: said("held", 0))
        before = newest_progress(world.settings, world.name)
        world.produce(20)
        world.until("it does not know of its input", lambda: said("held", 20))
        beat = said("held", 20)
        assert beat is not None and "can't read entry" in (beat.error or "") and "by ann" in (beat.error or "")
        assert newest_progress(world.settings, world.name) == before
        [status] = [s for s in statuses(world.context) if s.release.name == world.name]
        assert status.health == "held" and any("upgrade" in note for note in status.notes)
        with pytest.raises(Refused, match=f"{world.name} is held"):
            plan_stop(world.context, world.name)
        execute(world.context, plan_repair(world.context))
        world.settle()
        world.until("it does not say that it runs", lambda: said("running", 0))
        assert world.result() == world.expected({})
