"""The endpoint: what it exports of a reading, and that it answers where nothing can be read."""

from __future__ import annotations

import logging
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from orchestration.commands import metrics as command
from orchestration.operations.supervising.metrics import KafkaReader, Observation, ReleaseCollector, families
from orchestration.operations.supervising.overview import ReleaseStatus
from pipelines.errors import BadUsage, SwitchyardError, Unavailable
from pipelines.model.entries import Entry, FollowerRegistered, LeaseTaken, Opened, WantedSet
from pipelines.model.progress import Counts, Heartbeat
from pipelines.model.registry import RegistryState, fold
from pipelines.model.unread import Unread
from pipelines.settings import Settings
from tests.engine.test_lease import ELSEWHERE
from tests.operations.builders import Kafka, generation, staged, switched

LIVE, OTHER = "sums.v1", "sums.v2"
NOW_MS = 1_000_000_000
BEAT = Heartbeat(
    release=LIVE, generation=1, token=4, host="h", pid=1, at_ms=NOW_MS - 2_500, state="running", batch_id=9,
    behind_records=3, lag_records=70, input_records_per_s=11, processed_records_per_s=22, batch_ms=450,
    watermark_ms=5_000, rss_bytes=100, heap_used_bytes=7, heap_max_bytes=9, copies_fail_s=31.5,
    error="trouble",
)  # fmt: skip
TOTAL = Counts(rows_in=1_000, rows_out=900, late_dropped=5, dead_lettered=2)


def entries() -> list[Entry]:
    promote = Opened(id="promote-1", name="promote", releases=(LIVE,), deadline_ms=NOW_MS + 9)
    moved = [e.model_copy(update={"at_ms": 123_000}) for e in switched(1, None, LIVE, op=promote.id)]
    late = Opened(id="diff-1", name="diff", releases=(OTHER,), deadline_ms=NOW_MS - 1)
    return [
        *staged(LIVE, OTHER), LeaseTaken(release=LIVE, token=4, holder=ELSEWHERE), promote, *moved, late,
        WantedSet(release=LIVE, wanted="running"), FollowerRegistered(alias="sums", group="billing"),
    ]  # fmt: skip


def reading(**changes: Any) -> Observation:
    unread = [Unread(offset=99, reason="garbage"), Unread(offset=100, reason="newer", must=True, about=(OTHER,))]
    state = fold(RegistryState(), [*entries(), *unread])
    found = [
        ReleaseStatus(release=state.releases[LIVE], beat=BEAT, holder="process 1", live=True),
        ReleaseStatus(release=state.releases[OTHER], beat=None, holder=None, live=False),
    ]
    heard = {LIVE: BEAT.at_ms}
    return replace(Observation(state=state, found=found, totals={LIVE: TOTAL}, heard_ms=heard, at_ms=NOW_MS), **changes)


class Fake:
    """A reader that does what it is told to."""

    def __init__(self, read: Callable[[], Observation]) -> None:
        self.read = read
        self.readings = 0
        self.closed = False

    def close(self) -> None:
        self.closed = True


@contextmanager
def collected(read: Callable[[], Observation], timeout_s: float = 5.0) -> Iterator[Callable[[], dict[str, float]]]:
    """What a scrape gets, as OpenMetrics' own parser reads it: sample -> value."""
    reader = Fake(read)
    collector = ReleaseCollector(reader, timeout_s=timeout_s)
    registry = CollectorRegistry()
    registry.register(collector)
    yield lambda: samples(generate_latest(registry).decode())
    collector.close()
    assert reader.closed


def samples(text: str) -> dict[str, float]:
    return {
        s.name + "".join(f" {v}" for k, v in sorted(s.labels.items()) if k != "app"): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_everything_that_status_shows_is_exported_with_its_unit() -> None:
    with collected(reading) as scrape:
        found = scrape()
    of_live = {name.removesuffix(f" {LIVE}"): value for name, value in found.items() if name.endswith(f" {LIVE}")}
    assert of_live == {
        "switchyard_release_wanted_running": 1,
        "switchyard_release_running": 1,
        "switchyard_release_live": 1,
        "switchyard_release_generation": 1,
        "switchyard_release_driver_starts_total": 4,
        "switchyard_release_heartbeat_age_seconds": 2.5,
        "switchyard_release_lag_records": 70,
        "switchyard_release_unread_records": 3,
        "switchyard_release_input_records_per_second": 11,
        "switchyard_release_processed_records_per_second": 22,
        "switchyard_release_batch_duration_seconds": 0.45,
        "switchyard_release_watermark_timestamp_seconds": 5,
        "switchyard_release_resident_memory_bytes": 100,
        "switchyard_release_heap_used_bytes": 7,
        "switchyard_release_heap_max_bytes": 9,
        "switchyard_release_copies_failing_seconds": 31.5,
        "switchyard_release_driver_error": 1,
        "switchyard_release_input_records_total": 1_000,
        "switchyard_release_result_records_total": 900,
        "switchyard_release_late_records_total": 5,
        "switchyard_release_dead_letters_total": 2,
    }
    assert found["switchyard_up"] == 1
    assert found[f"switchyard_release_state {LIVE} live"] == 1 and found[f"switchyard_release_state {LIVE} failed"] == 0
    assert found["switchyard_app_switches_total"] == 1 and found["switchyard_app_followers"] == 1
    assert found["switchyard_app_last_switch_timestamp_seconds"] == 123
    assert found["switchyard_operations_open"] == 2 and found["switchyard_operations_overdue"] == 1
    assert found["switchyard_registry_unread_entries"] == 2 and found["switchyard_registry_holding_entries"] == 1


def test_what_is_not_known_is_left_out_and_not_zero() -> None:
    with collected(reading) as scrape:
        found = scrape()
    of_other = {name.split()[0] for name in found if f" {OTHER}" in name}
    assert of_other == {
        "switchyard_release_wanted_running", "switchyard_release_running", "switchyard_release_live",
        "switchyard_release_generation", "switchyard_release_driver_starts_total", "switchyard_release_state",
    }  # fmt: skip
    silent = BEAT.model_copy(update={"lag_records": None, "watermark_ms": None, "error": None, "copies_fail_s": None})
    status = replace(reading().found[0], beat=silent)
    with collected(lambda: reading(found=[status])) as scrape:
        found = scrape()
    assert f"switchyard_release_lag_records {LIVE}" not in found
    assert found[f"switchyard_release_copies_failing_seconds {LIVE}"] == 0
    assert f"switchyard_release_watermark_timestamp_seconds {LIVE}" not in found
    assert found[f"switchyard_release_driver_error {LIVE}"] == 0


def test_a_release_s_name_is_escaped() -> None:
    """A label's value is whatever the registry holds."""
    status = reading().found[0]
    odd = replace(
        status, release=replace(status.release, spec=status.release.spec.model_copy(update={"release": 'a"\n}'}))
    )
    with collected(lambda: reading(found=[odd], totals={})) as scrape:
        assert 'switchyard_release_live a"\n}' in scrape()


@pytest.mark.parametrize("error", [Unavailable("no Kafka broker answers"), ValueError("a bug")])
def test_without_a_broker_it_says_so_and_nothing_else(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Observation:
        raise error

    with collected(fail) as scrape:
        first, second = scrape(), scrape()
    for found in (first, second):
        assert found["switchyard_up"] == 0
        assert {name.split()[0] for name in found} == {
            "switchyard_up", "switchyard_build_info", "switchyard_scrape_duration_seconds",
        }  # fmt: skip
    # once, not with each scrape
    assert len(caplog.records) == 1 and str(error).split("\n")[0] in caplog.text


def test_it_recovers_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[Any] = [Unavailable("gone"), None, None]

    def read() -> Observation:
        error = outcomes.pop(0)
        if error is not None:
            raise error
        return reading()

    with collected(read) as scrape, caplog.at_level(logging.WARNING):
        assert [scrape()["switchyard_up"] for _ in range(3)] == [0, 1, 1]
    assert [r.message for r in caplog.records] == ["the releases are unknown: gone", "the releases are known again"]


def test_a_reading_that_takes_long_bounds_the_scrape_and_is_not_begun_twice() -> None:
    go_on, readings = threading.Event(), 0

    def read() -> Observation:
        nonlocal readings
        readings += 1
        assert go_on.wait(30)
        return reading()

    with collected(read, timeout_s=0.05) as scrape:
        assert scrape()["switchyard_up"] == 0 and scrape()["switchyard_up"] == 0
        assert readings == 1
        go_on.set()


def test_a_heartbeat_that_can_not_be_exported_makes_the_endpoint_say_that_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "orchestration.operations.supervising.metrics.families", lambda found: 1 / 0 if found else families(None)
    )
    with collected(reading) as scrape:
        assert scrape()["switchyard_up"] == 0


def test_a_driver_that_falls_silent_is_told_of_for_longer_than_heartbeats_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = fold(RegistryState(), [*entries(), WantedSet(release=LIVE, wanted="running")])
    live = ReleaseStatus(release=state.releases[LIVE], beat=BEAT, holder="process 1", live=True)
    silent = replace(live, beat=None)
    stopped = replace(silent, release=replace(live.release, wanted="stopped"))
    answers = iter([[silent], [live], [silent], [stopped]])
    monkeypatch.setattr("orchestration.operations.supervising.metrics.statuses_of", lambda *_, **__: next(answers))
    reader = KafkaReader(Settings(bootstrap_servers="127.0.0.1:1"))
    registry = SimpleNamespace(state=lambda **_: state, cluster=Kafka(), close=lambda: None)
    reader._context = cast(Any, SimpleNamespace(registry=registry, cluster=registry.cluster, now_ms=lambda: 1))
    assert [reader.read().heard_ms for _ in range(4)] == [{}, {LIVE: BEAT.at_ms}, {LIVE: BEAT.at_ms}, {}]


@pytest.mark.parametrize(("wrote", "told"), [(1, {}), (2, {LIVE: TOTAL})])
def test_what_an_earlier_generation_has_read_is_not_told_of_the_one_under_way(
    monkeypatch: pytest.MonkeyPatch, wrote: int, told: dict[str, Counts]
) -> None:
    state = fold(RegistryState(), [*entries(), generation(LIVE, 2)])
    still = ReleaseStatus(release=state.releases[LIVE], beat=None, holder=None, live=True)
    monkeypatch.setattr("orchestration.operations.supervising.metrics.statuses_of", lambda *_, **__: [still])
    last = SimpleNamespace(generation=wrote, total=TOTAL)
    registry = SimpleNamespace(state=lambda **_: state, close=lambda: None)
    cluster = Kafka(names={f"{LIVE}.progress"})
    reader = KafkaReader(Settings(bootstrap_servers="127.0.0.1:1"))
    reader._context = cast(
        Any, SimpleNamespace(registry=registry, cluster=cluster, progress=lambda _: last, now_ms=lambda: 1)
    )
    assert reader.read().totals == told


def test_registering_asks_no_broker() -> None:
    def fail() -> Observation:
        raise AssertionError("read")

    with collected(fail) as scrape:
        pass
    assert scrape is not None


def test_it_is_served_as_openmetrics_on_loopback() -> None:
    collector = ReleaseCollector(Fake(reading))
    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        request = urllib.request.Request(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            assert samples(answer.read().decode())["switchyard_up"] == 1
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        collector.close()


def test_the_command_binds_to_loopback_unless_told_otherwise() -> None:
    import inspect

    assert inspect.signature(command.metrics).parameters["host"].default == "127.0.0.1"


def test_a_busy_port_is_an_error_that_says_what_to_do(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "load_settings", lambda: Settings(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(SwitchyardError, match="can't serve metrics on") as error:
        command.metrics(port=int(silent.rpartition(":")[2]), host="127.0.0.1")
    assert "--port" in error.value.fix


def test_the_broker_of_another_state_directory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(_: Settings) -> None:
        raise BadUsage("another's")

    monkeypatch.setattr("orchestration.local.broker.refuse_another_s", another)
    with pytest.raises(BadUsage):
        command.metrics(port=0, host="127.0.0.1")


@pytest.mark.broker
def test_a_registry_in_kafka_is_read_and_nothing_is_written(broker: Settings) -> None:
    """What is past its deadline is left to others: an exporter may have no right to write."""
    from pipelines.kafka.registry import Registry

    with Registry(broker, actor="tester") as registry:
        registry.step(lambda _: entries())
        before = len([*registry.history()])
        reader = KafkaReader(broker)
        try:
            first = reader.read()
            registry.step(lambda _: [WantedSet(release=OTHER, wanted="running")])
            second = reader.read()
        finally:
            reader.close()
        assert len([*registry.history()]) == before + 1
    assert [each.release.name for each in first.found] == [LIVE, OTHER]
    assert [each.release.wanted for each in second.found] == ["running", "running"]
    # neither a driver nor a progress topic, as if someone had deleted it: that hides nothing else
    assert second.totals == {}
    assert {family.name for family in families(second)} == {family.name for family in families(None)}
