"""The broker ends a transaction while its driver runs, as after a suspended host: the batch is written again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.engine.batch_writer import BatchWriter
from pipelines.settings import Settings
from tests.e2e.harness import open_transactions, topics_of
from tests.reset.world import live_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


def test_a_batch_that_takes_longer_than_its_transaction_is_written_once(
    broker: Settings, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_world(broker, spark, "stateless", tmp_path, transaction_timeout_s=10.0) as world:
        token, topics = world.release.token, topics_of(world.context, world.name)
        stuck, commit = threading.Event(), BatchWriter.commit_progress

        def slowly(self: BatchWriter, *arguments: Any) -> None:
            if not stuck.is_set():
                stuck.set()
                # the records are under way to the broker, which ends the transaction within 20 s
                world.until("nothing is sent", lambda: open_transactions(broker, topics))
                world.until("the broker has not ended the transaction", lambda: not open_transactions(broker, topics))
            commit(self, *arguments)

        monkeypatch.setattr(BatchWriter, "commit_progress", slowly)
        world.produce(100)
        world.until("no batch was written", stuck.is_set)
        world.settle()
        world.produce(20)
        world.settle()
        assert world.result() == world.expected({})
        assert (world.release.token, world.release.state) == (token, "live")
