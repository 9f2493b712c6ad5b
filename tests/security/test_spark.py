"""Spark, which reads by Kafka's Java client, logs in as all else does, and shows the password nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.engine.frames import read_range, read_stream
from pipelines.engine.outages import is_outage
from pipelines.engine.spark_conf import spark_kafka_options
from pipelines.kafka.client import producer
from pipelines.kafka.login import java_properties
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.model import Json, Stream
from pipelines.settings import Settings
from tests.security.guarded import ADMIN, PASSWORD, PLANTED, Guarded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TOPIC = "guarded-numbers"
SOURCE = Stream(topic=TOPIC, key="k string", value=Json("n long NOT NULL"))
RECORDS = 20


@pytest.fixture(scope="module")
def reader(guarded: Guarded) -> Iterator[Settings]:
    """The settings of a user who may read a topic that has records."""
    settings = guarded.settings("admin", ADMIN)
    ensure_topic(settings, TOPIC, 2, INPUT)
    client = producer(settings)
    for number in range(RECORDS):
        client.produce(TOPIC, json.dumps({"n": number}), f"k{number}", partition=number % 2)
    assert client.flush(60) == 0
    guarded.add("reader")
    yield guarded.settings("reader")


def shown_by(spark: SparkSession) -> str:
    """What Spark's UI and an event log show of every query so far, of the session and of its process."""
    jvm: Any = spark._jvm
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    plans = [executions.apply(at) for at in range(executions.size())]
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    properties = str(jvm.java.lang.System.getProperties())
    arguments = Path(f"/proc/{pid}/cmdline").read_text()
    return "\n".join(
        [
            *(f"{plan.description()}\n{plan.details()}\n{plan.physicalPlanDescription()}" for plan in plans),
            *(f"{name}={value}" for name, value in spark.sparkContext.getConf().getAll()),
            properties,
            arguments,
        ]
    )


def plans_of(query: Any) -> str:
    """Every plan of a query, with all that Spark would print of them."""
    return str(query.queryExecution().toString())


def test_a_range_and_a_stream_are_read_and_the_password_is_shown_nowhere(
    spark: SparkSession, reader: Settings, tmp_path: Path
) -> None:
    # where it is shown if an option holds it
    assert PLANTED in str(java_properties(reader)) and PLANTED not in str(spark_kafka_options(reader))
    frame = read_range(spark, reader, TOPIC, {}, {0: RECORDS // 2, 1: RECORDS // 2})
    assert {row["key"].decode() for row in frame.collect()} == {f"k{n}" for n in range(RECORDS)}
    stream = read_stream(spark, reader, SOURCE, {0: 0, 1: 0}, 1000)
    query = (
        stream.writeStream.format("memory")
        .queryName("guarded")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120) and query.exception() is None
    assert spark.table("guarded").count() == RECORDS

    run = query._jsq.streamingQuery().lastExecution()
    shown = "\n".join([plans_of(frame._jdf), plans_of(stream._jdf), run.toString(), shown_by(spark)])
    assert TOPIC in shown
    assert PLANTED not in shown
    assert PLANTED not in str(query.recentProgress) + str(query.lastProgress)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if PLANTED.encode() in path.read_bytes()]


def test_a_login_that_is_refused_is_an_outage_that_waits_and_shows_no_password(
    spark: SparkSession, guarded: Guarded, reader: Settings, tmp_path: Path
) -> None:
    wrong = guarded.settings("reader", PASSWORD + "-not")
    stream = read_stream(spark, wrong, SOURCE, {0: 0, 1: 0}, 1000)
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="Authentication failed") as caught:
        query.awaitTermination(120)
    assert is_outage(caught.value)
    assert PLANTED not in str(caught.value)
