"""A running `dagster dev`, driven by GraphQL: reprocess, promote, killed whole, and started again."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration.operations.context import Context, open_context
from orchestration.operations.execute import execute
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.run import plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.wait import wait_ready
from orchestration.sources.base import Options
from orchestration.sources.catalog import source_for
from orchestration.sources.run import produce
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.progress import newest_progress
from pipelines.model.entries import LeaseTaken, WantedSet
from pipelines.model.progress import Heartbeat, Progress
from pipelines.settings import Settings
from tests.defs.dev import ROOT, DagsterDev, RunFailed, failure_of, metadata_of
from tests.e2e.harness import code_without_suite
from tests.shared.threads import trials_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# shares two cores with two drivers, a broker, and the JVM of the checks
pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]

APP, V1, V2 = "stock-stats", "stock-stats.v1", "stock-stats.v2"
# started by the supervisor
WANTED, W1 = "large-orders", "large-orders.v1"
HISTORY = 10_000
RATE = 50
STEP_TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def settings(broker: Settings) -> Settings:
    """Small drivers."""
    return broker.model_copy(
        update={
            "driver_heap_mb": 640,
            "driver_cores": 1,
            # three of them share two cores with Dagster
            "trigger_s": 4.0,
            # a driver here lives for minutes: what the second compiler saves later, it never earns back
            "spark": {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"},
        }
    )


@pytest.fixture(scope="module")
def operations(settings: Settings) -> Iterator[Context]:
    """The terminal's side. Ends every driver afterwards."""
    context = open_context(settings, actor="tests")
    yield context
    for release in context.registry.state().releases.values():
        execute(context, plan_stop(context, release.name))
    context.registry.close()


@pytest.fixture(scope="module")
def dev(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterDev]:
    found = DagsterDev(tmp_path_factory.mktemp("dagster"), settings.environment())
    yield found
    found.kill()


@contextmanager
def input_of(app: str, settings: Settings) -> Iterator[None]:
    """History, then live input all along."""
    source = source_for(app, Options())
    produce(settings, source, history=HISTORY)
    over = threading.Event()
    live = threading.Thread(target=lambda: produce(settings, source, rate=RATE, stopped=over.is_set))
    live.start()
    try:
        yield
    finally:
        over.set()
        live.join()


def beat_of(settings: Settings, release: str) -> Heartbeat:
    return latest_heartbeats(settings)[release]


def progress_of(settings: Settings, release: str) -> Progress:
    found = newest_progress(settings, release)
    assert found is not None
    return found


def running(settings: Settings, release: str) -> bool:
    beat = latest_heartbeats(settings).get(release)
    return beat is not None and beat.state == "running"


def tokens(operations: Context, release: str) -> list[int]:
    """Every lease that was ever taken on a release."""
    operations.registry.state()
    return [e.token for e in operations.registry.history() if isinstance(e, LeaseTaken) and e.release == release]


def goes_on(settings: Settings, release: str) -> Callable[[], bool]:
    """Whether `release` has committed further batches, and been heard, since this call."""
    before, beat = progress_of(settings, release), beat_of(settings, release)

    def advanced() -> bool:
        now = progress_of(settings, release)
        heard = beat_of(settings, release)
        return (
            now.boundary.batch_id > before.boundary.batch_id
            and now.total.rows_in > before.total.rows_in
            and heard.at_ms > beat.at_ms
            and heard.pid == beat.pid
        )

    return advanced


def test_dagster_starts_reprocesses_and_promotes_and_what_it_started_outlives_it(
    settings: Settings, operations: Context, dev: DagsterDev, spark: SparkSession, tmp_path: Path
) -> None:
    """The supervisor starts what is wanted; the assets and jobs bring two versions of another app up. Then every process
    of Dagster dies at once, and the streams go on. Dagster is back, finds them running, and starts nothing.
    """
    with input_of(WANTED, settings), input_of(APP, settings):
        _stage_wanted(settings, operations, spark, tmp_path / "code")
        dev.start()
        _is_started(settings, operations, dev)
        _is_hydrated_checked_and_promoted(operations, dev)
        _is_reprocessed_and_promoted(operations, dev)

        names = (W1, V1, V2)
        held = {release: tokens(operations, release) for release in names}
        pids = {release: beat_of(settings, release).pid for release in names}
        live = {app: operations.registry.state().live(app) for app in (WANTED, APP)}
        assert not dev.processes() & set(pids.values())
        dev.kill()
        _go_on(settings, dev, names)

        dev.start()
        returned_s = time.time()
        dev.until(
            "the supervisor makes no turns",
            lambda: dev.turns("supervisor", since_s=returned_s) >= 2,
            timeout_s=150,
        )
        assert {release: tokens(operations, release) for release in names} == held
        assert {release: beat_of(settings, release).pid for release in names} == pids
        assert {app: operations.registry.state().live(app) for app in (WANTED, APP)} == live
        _go_on(settings, dev, names)
        _has_no_traceback_of_ours(dev.log.read_text())


def _stage_wanted(settings: Settings, operations: Context, spark: SparkSession, folder: Path) -> None:
    """Stages a release that should run, and that nobody has started."""
    with trials_in(spark):
        execute(
            operations,
            plan_stage(operations, WANTED, version=1, code_dir=code_without_suite(folder, "large_orders")),
        )
    operations.registry.step(lambda _: [WantedSet(release=W1, wanted="running")])


def _is_started(settings: Settings, operations: Context, dev: DagsterDev) -> None:
    dev.until("the supervisor has not started it", lambda: running(settings, W1), timeout_s=STEP_TIMEOUT_S)
    wait_ready(operations, W1, unread_records=1_000, for_s=0.1, timeout_s=STEP_TIMEOUT_S)
    execute(operations, plan_promote(operations, W1))
    assert len(tokens(operations, W1)) == 1


def _is_hydrated_checked_and_promoted(operations: Context, dev: DagsterDev) -> None:
    """Version 1, with its bug, by materializing its partition; then live, by materializing the alias."""
    dev.add_partition("releases_stock_stats", V1)
    config = {"code_dir": str(ROOT / "demo" / "v1"), "for_s": 1.0, "unread_records": 1_000}
    dev.materialize("results", APP, partition=V1, config=config, timeout_s=STEP_TIMEOUT_S)
    [first] = dev.materializations("results", APP)
    assert first["partition"] == V1
    assert first["records"] >= HISTORY and first["generation"] == 1 and first["lag_records"] is not None

    # the registry's verdict counts: unchecked is refused, with what to do
    refused = dev.materialize("live", APP, config={"execute": True}, timeout_s=STEP_TIMEOUT_S, ok=False)
    assert "its result is not checked" in failure_of(refused)
    dev.check("results", APP, check="stock_stats", partition=V1, timeout_s=STEP_TIMEOUT_S)
    [checked] = dev.checks("results", APP, check="stock_stats")
    assert checked["partition"] == V1 and checked["evaluation"]["success"], checked
    # each expectation has a result of its own
    for name in ("windows_complete", "key_unique", "volume_against_live"):
        [one] = dev.checks("results", APP, check=name)
        assert one["partition"] == V1 and one["evaluation"]["success"], one

    # the default shows the plan, and changes nothing
    dev.materialize("live", APP, config={}, timeout_s=STEP_TIMEOUT_S)
    assert operations.registry.state().live(APP) is None
    assert dev.materializations("live", APP) == []
    dev.materialize("live", APP, config={"execute": True}, timeout_s=STEP_TIMEOUT_S)
    switch = operations.registry.state().live(APP)
    assert switch is not None and switch.new == V1
    assert dev.materializations("live", APP)[-1]["release"] == V1


def _is_reprocessed_and_promoted(operations: Context, dev: DagsterDev) -> None:
    """Version 2, the repository's, by the job."""
    config = {"app": APP, "version": 2, "for_s": 1.0, "unread_records": 1_000}
    found = metadata_of(dev.run_job("reprocess", config={**config, "execute": True}, timeout_s=STEP_TIMEOUT_S))
    assert "differ" in found["diff"] and "append switch 2" in found["plan"] and found["executed"] is False
    assert operations.registry.state().evidence[-1].summary["changed"] > 0
    assert dev.materializations("results", APP)[0]["partition"] == V2
    for name in ("stock_stats", "windows_complete"):
        assert {c["partition"] for c in dev.checks("results", APP, check=name)} == {V1, V2}
    # it stopped for approval
    switch = operations.registry.state().live(APP)
    assert switch is not None and switch.new == V1
    [plan] = re.findall(r"promote-\d{8}-\d{6}-\w+", found["plan"])[:1]
    dev.run_job("promote", config={"app": APP, "plan": plan, "execute": True}, timeout_s=STEP_TIMEOUT_S)
    assert operations.registry.state().operations[plan].promoted is not None
    switch = operations.registry.state().live(APP)
    assert switch is not None and (switch.number, switch.old, switch.new) == (2, V1, V2)
    dev.until(
        "the supervisor has not told of the switch",
        lambda: any((m["release"], m.get("switch")) == (V2, 2) for m in dev.materializations("live", APP)),
        timeout_s=150,
    )


def _go_on(settings: Settings, dev: DagsterDev, releases: Iterable[str]) -> None:
    for release in releases:
        dev.until(f"{release} stands still", goes_on(settings, release), timeout_s=60)


def _has_no_traceback_of_ours(log: str) -> None:
    # both sensors ran to their end, the supervisor beside a release: else no traceback says nothing
    assert re.search(r"Sensor supervisor skipped: running: .*\.v\d", log), log[-4000:]
    assert "Sensor watch_after_promotion skipped: no promotion" in log, log[-4000:]
    assert "orchestration/defs/supervisor.py" not in log
    assert "orchestration/defs/watching.py" not in log


def test_a_run_that_fails_says_so(dev: DagsterDev) -> None:
    """The client of these tests sees failures: else the tests above could not fail."""
    dev.start()
    with pytest.raises(RunFailed, match="there is no release"):
        dev.run_job("start", config={"release": "stock-stats.v9"}, timeout_s=STEP_TIMEOUT_S)
