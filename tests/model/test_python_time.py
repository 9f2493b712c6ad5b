"""time_us: the event time as a number, by which Spark still drops late rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from pipelines.errors import BadUsage
from pipelines.model import App, AppendStream, Json, Stream, time_us
from pipelines.testing import AppFailed, AppTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


class Times(StatefulProcessor):
    """Tells the time of each row, as text: of a number its digits."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            yield pd.DataFrame({"name": key[0], "at": frame["event_time"].map(str)})

    def close(self) -> None:
        pass


def told(given: DataFrame, time: Any) -> DataFrame:
    selected = given.select("name", time)
    return selected.groupBy("name").transformWithStateInPandas(Times(), "name string, at string", "append", "eventTime")


def app_of(body: Any) -> App:
    inputs = {"given": Stream(topic="given", key="name string", value=Json("at timestamp NOT NULL"), time="at")}
    return App(
        name="times",
        inputs=inputs,
        results={"": AppendStream(key=("name",))},
        function=lambda settings, given: body(given),
        watermark="10 seconds",
    )


def send(test: AppTest, at: str, stamp: str) -> None:
    test.send("given", {"at": at}, key="a", time=stamp)


NEW = "9999-12-31T23:59:50Z"


def test_any_time_comes_to_python_as_microseconds_and_what_is_late_is_dropped(spark: SparkSession) -> None:
    with AppTest(spark, app_of(lambda given: told(given, time_us(given)))) as test:
        for at in ("2999-01-01T00:00:00Z", "2026-01-01T12:00:00.000001Z"):
            send(test, at, NEW)
        assert {row["at"] for row in test.run()} == {"32472144000000000", "1767268800000001"}
        send(test, NEW, NEW)
        assert {row["at"] for row in test.run()} == {"253402300790000000"}
        # the watermark is the newest time less 10 s; what is not after it is late
        for at in ("9999-12-31T23:59:40Z", "9999-12-31T23:59:40.000001Z", "1600-01-01T00:00:00Z"):
            send(test, at, NEW)
        batch = test.run()
        assert ([row["at"] for row in batch], batch.late) == (["253402300780000001"], 2)


def test_without_it_such_a_time_fails_and_the_error_says_what_to_do(spark: SparkSession) -> None:
    with AppTest(spark, app_of(lambda given: told(given, F.col("event_time")))) as test:
        send(test, NEW, NEW)
        with pytest.raises(
            AppFailed, match=r"pandas has no time before 1677 or after 2262\. .*`time_us` for event_time"
        ):
            test.run()


def test_it_needs_the_column(spark: SparkSession) -> None:
    with (
        AppTest(spark, app_of(lambda given: told(given, time_us(given.drop("event_time"))))) as test,
        pytest.raises(BadUsage, match="time_us needs the column event_time"),
    ):
        test.run()
