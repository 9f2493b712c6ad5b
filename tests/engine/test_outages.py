"""Outages of Kafka: what a driver takes for one, and what it says while it waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.errors.exceptions.captured import convert_exception

from pipelines.engine.causes import cause
from pipelines.engine.driver import Driver
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.outages import Outages, is_outage
from pipelines.engine.telemetry import DriverStatus
from pipelines.engine.watch import PartLost
from pipelines.errors import LoginRefused, Unavailable
from pipelines.settings import Settings
from pipelines.signals import StopSignal
from tests.shared.ports import port_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = Settings(bootstrap_servers="kafka:9092")


REFUSED = LoginRefused("the Kafka cluster at k:1 refuses the login of me", fix="check sasl.password")


def test_a_driver_says_in_an_outage_that_its_login_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    status = DriverStatus()
    outages = Outages(SETTINGS, "stock-stats.v1", status, StopSignal())
    timed_out = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    for name in ("_ASK_S", "_BACKOFF_S"):
        monkeypatch.setattr(f"pipelines.engine.outages.{name}", 0 if name == "_ASK_S" else (0,))
    monkeypatch.setattr("pipelines.engine.outages.admin", lambda _: None)
    answered = iter([False, False, False, True, False, True])
    monkeypatch.setattr("pipelines.engine.outages.answers", lambda *_: next(answered))
    told: Iterator[LoginRefused | None] = iter([None, REFUSED, None])
    monkeypatch.setattr("pipelines.engine.outages.login_refused", lambda *_: next(told))
    outages.wait_out("batch 3", timed_out)
    assert status.error == f"batch 3: {REFUSED.what}; {REFUSED.fix}"
    # other outages report their own error
    outages.wait_out("batch 3", timed_out)
    assert status.error == f"batch 3: {cause(timed_out)}"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SaslAuthenticationException", True),
        ("SslAuthenticationException", True),
        ("TopicAuthorizationException", False),
    ],
)
def test_a_login_that_spark_s_client_is_refused_with_is_waited_for(
    spark: SparkSession, name: str, expected: bool
) -> None:
    error = java_class(f"org.apache.kafka.common.errors.{name}")("Authentication failed")
    assert is_outage(convert_exception(error)) is expected
    around = java_class("java.util.concurrent.ExecutionException")("a future has failed", error)
    assert is_outage(convert_exception(around)) is expected


@pytest.mark.spark
def test_an_error_of_spark_s_client_is_an_outage_and_a_record_that_quotes_one_is_not(spark: SparkSession) -> None:
    port = port_of("nobody")
    options = {
        "kafka.bootstrap.servers": f"127.0.0.1:{port}",
        "kafka.default.api.timeout.ms": "300",
        "kafka.request.timeout.ms": "200",
        "subscribe": "trades",
    }
    with pytest.raises(Exception) as lost:
        spark.read.format("kafka").options(**options).load().toArrow()
    assert "org.apache.kafka.common.errors.TimeoutException" in str(lost.value) and is_outage(lost.value)

    quoted = "org.apache.kafka.common.errors.TimeoutException"
    for function in ("cast(value AS int)", "raise_error(value)"):
        with pytest.raises(Exception, match=quoted) as failed:
            spark.createDataFrame([(quoted,)], "value string").selectExpr(function).toArrow()
        assert not is_outage(failed.value)
    assert not is_outage(Exception(f"{quoted}: of an author's function"))


def test_a_topic_that_is_gone_does_not_keep_a_driver_waiting() -> None:
    assert not is_outage(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))


def test_a_marker_that_can_not_be_written_in_an_outage_waits_for_the_next_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = Driver.__new__(Driver)
    driver._name = "stock-stats.v1"
    calls: list[Exception] = []

    def write(error: Exception) -> None:
        calls.append(error)
        raise error

    gone = Unavailable("no Kafka broker answers")
    driver._unless_outage(lambda: write(gone))
    assert calls == [gone] and "stock-stats.v1: no Kafka broker answers" in caplog.text
    # no outage: the driver must end
    lost = PartLost("topic stock-stats.v1.progress is gone", fix="bring it back")
    with pytest.raises(PartLost, match="is gone"):
        driver._unless_outage(lambda: write(lost))
    assert calls == [gone, lost]
