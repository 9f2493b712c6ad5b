"""The port on which Spark gives an app in Python its state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues
from pyspark.sql.types import StringType, StructType

from pipelines.engine.jvm.classes import java_class
from pipelines.model import App, AppendStream, Json, Stream, app
from pipelines.testing import AppTest
from tests.shared.sockets import is_local, listening

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Listener(StatefulProcessor):
    """Gives for each record where the process `pid` listens."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", StructType().add("name", StringType()))

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        for _ in rows:
            # over the port in question
            self._seen.update((key[0],))
            for address, port in sorted(listening(self._pid)):
                yield pd.DataFrame({"name": [key[0]], "address": [address], "port": [port]})

    def close(self) -> None:
        pass


def listener(pid: int) -> App:
    def listen(settings: Any, given: DataFrame) -> DataFrame:
        schema = "name string, address string, port long"
        return given.groupBy("name").transformWithStateInPandas(Listener(pid), schema, "append", "none")

    inputs = {"given": Stream(topic="given", key="name string", value=Json("n int NOT NULL"))}
    return app(name="listener", inputs=inputs, result=AppendStream(key=("name",)))(listen)


def test_only_this_machine_can_connect_to_the_state_of_an_app(spark: SparkSession) -> None:
    pid = int(java_class("java.lang.ProcessHandle").current().pid())
    with AppTest(spark, listener(pid)) as test:
        test.send("given", {"n": 1}, key="a", time=0)
        before = listening(pid)
        found = {(row["address"], row["port"]) for row in test.run().rows}
    assert found - before, "the port of the state was not there"
    assert all(is_local(address) for address, _ in found), found
