"""A driver's heartbeats continue even if some of their values can't be found out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event
from typing import Any

import pytest

from pipelines.engine import heart, telemetry
from pipelines.engine.heart import PROBE_TIMEOUT_S, Heart, Probe
from pipelines.errors import Unavailable
from pipelines.kafka.client import admin
from pipelines.kafka.offsets import end_of
from pipelines.kafka.topics import INPUT, delete_topics, ensure_topic
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Heartbeat
from pipelines.settings import Settings

SOON_S = 0.05


def failing() -> int:
    raise Unavailable("the partition has no leader")


class Sent:
    """A producer that keeps the heartbeats that it gets."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.beats: list[Heartbeat] = []

    def produce(self, topic: str, value: str, key: str, partition: int) -> None:
        self.beats.append(Heartbeat.model_validate_json(value))

    def poll(self, timeout_s: float) -> None: ...

    def flush(self, timeout_s: float) -> None: ...


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    made = Sent()
    monkeypatch.setattr(heart, "producer", lambda *_, **__: made)
    return made


def snapshot(lag: Callable[[], int | None]) -> Callable[[], Heartbeat]:
    return lambda: Heartbeat(
        release="sums.v1", generation=1, token=1, host="h", pid=1, at_ms=1, state="failed", lag_records=lag()
    )


def test_a_beat_is_sent_where_the_lag_can_not_be_asked(sent: Sent) -> None:
    Heart(Settings(heartbeat_s=60), snapshot(Probe("the lag", failing))).close()
    assert [(beat.state, beat.lag_records) for beat in sent.beats] == [("failed", None)] * 2


def test_a_beat_does_not_wait_for_an_answer_that_does_not_come(sent: Sent) -> None:
    over = Event()
    lag = Probe("the lag", lambda: over.wait(60) or 5, timeout_s=SOON_S)
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(lambda: Heart(Settings(heartbeat_s=60), snapshot(lag)).close()).result(30)
            assert [(beat.state, beat.lag_records) for beat in sent.beats] == [("failed", None)] * 2
        finally:
            over.set()


def test_what_comes_too_late_is_told_to_nobody_and_asked_again() -> None:
    over, answers = Event(), count(1)

    def ask() -> int:
        over.wait(60)
        return next(answers)

    lag = Probe("the lag", ask, timeout_s=SOON_S)
    assert [lag(), lag()] == [None, None]
    over.set()
    deadline = time.monotonic() + 10
    while (found := lag()) is None:
        assert time.monotonic() < deadline
    assert found > 1


def test_trouble_is_logged_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([True, True, False, False, True])

    def ask() -> int:
        return failing() if next(answers) else 7

    lag = Probe("the lag", ask)
    with caplog.at_level(logging.INFO):
        assert [lag() for _ in range(5)] == [None, None, 7, 7, None]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    assert "the lag is unknown: Unavailable: the partition has no leader" in caplog.text


def probe_of(settings: Settings, topic: str, partitions: int) -> Callable[[], int | None]:
    """The heartbeat that a driver sends before its first batch."""
    start = SourcePosition(sources={})
    return telemetry.lag_probe(settings, admin(settings), lambda: start, {"in": topic}, {"in": partitions})


def test_the_driver_does_not_know_its_lag_where_kafka_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "end_of", lambda *_, **__: failing())
    assert probe_of(Settings(), "trades", 1)() is None


@pytest.mark.broker
def test_a_partition_without_a_leader_makes_the_lag_unknown_soon(
    broker: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asks for end offsets with the probe's time-out, not with the driver's own, which may be long."""
    settings = broker.model_copy(update={"request_timeout_s": 3600.0})
    asked: list[float] = []

    def ends(asking: Settings, *arguments: Any, **options: Any) -> dict[int, int]:
        asked.append(asking.request_timeout_s)
        return end_of(asking, *arguments, **options)

    monkeypatch.setattr(telemetry, "end_of", ends)
    ensure_topic(broker, "lag-of-two", 1, INPUT)
    try:
        assert probe_of(settings, "lag-of-two", 1)() == 0
        # the second one does not exist; a client gets the same error for one without a leader
        assert probe_of(settings, "lag-of-two", 2)() is None
        assert asked == [PROBE_TIMEOUT_S] * 2
    finally:
        delete_topics(broker, ["lag-of-two"])
