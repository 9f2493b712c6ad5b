"""A running `dagster dev`, driven by GraphQL: reprocess, promote, killed whole, and started again."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
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
from pipelines.model.progress import Heartbeat, Progress
from pipelines.model.registry import LeaseTaken, WantedSet
from pipelines.settings import Settings
from tests.defs.dev import ROOT, DagsterDev, RunFailed, failure_of, metadata_of
from tests.e2e.harness import code_without_suite
from tests.shared.threads import trials_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# shares two cores with two drivers, a broker, and the JVM of the checks
pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(1200)]

APP = "stock-stats"
V1, V2 = "stock-stats.v1", "stock-stats.v2"
HISTORY = 20_000
RATE = 200
STEP_TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def settings(broker: Settings) -> Settings:
    """Small drivers."""
    return broker.model_copy(
        update={
            "driver_heap_mb": 640,
            "driver_cores": 1,
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


def test_a_stream_that_dagster_started_outlives_it_and_is_adopted(
    settings: Settings, operations: Context, dev: DagsterDev, spark: SparkSession, tmp_path: Path
) -> None:
    """The supervisor starts what is wanted; every process of Dagster dies at once, and the stream goes on; Dagster is back,
    and starts nothing.
    """
    name = "large-orders.v1"
    with input_of("large-orders", settings):
        with trials_in(spark):
            execute(
                operations,
                plan_stage(
                    operations,
                    "large-orders",
                    version=1,
                    code_dir=code_without_suite(tmp_path / "code", "large_orders"),
                ),
            )
        operations.registry.step(lambda _: [WantedSet(release=name, wanted="running")])
        dev.start()
        dev.until("the supervisor has not started it", lambda: running(settings, name), timeout_s=STEP_TIMEOUT_S)
        wait_ready(operations, name, lag_records=1_000, for_s=0.1, timeout_s=STEP_TIMEOUT_S)
        execute(operations, plan_promote(operations, name))
        held, pid = tokens(operations, name), beat_of(settings, name).pid
        assert len(held) == 1 and pid not in dev.processes()
        dev.kill()
        dev.until(f"{name} stands still", goes_on(settings, name), timeout_s=60)
        dev.start()
        told = len(dev.materializations("live", "large-orders"))
        dev.until(
            "the supervisor has not told of the adopted release",
            lambda: len(dev.materializations("live", "large-orders")) > told,
            timeout_s=150,
        )
        newest = dev.materializations("live", "large-orders")[0]
        assert newest["release"] == name and newest["switch"] == 1
        assert tokens(operations, name) == held and beat_of(settings, name).pid == pid
        dev.until(f"{name} stands still", goes_on(settings, name), timeout_s=60)


def test_reprocess_and_promote_then_dagster_dies_and_returns(
    settings: Settings, operations: Context, dev: DagsterDev
) -> None:
    with input_of(APP, settings):
        dev.start()

        # version 1, with its bug, by materialising its partition; then live, by materialising the alias
        dev.add_partition("releases_stock_stats", V1)
        config = {"code_dir": str(ROOT / "demo" / "v1"), "for_s": 1.0, "lag_records": 1_000}
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

        # version 2, the repository's, by the job
        config = {"app": APP, "version": 2, "for_s": 1.0, "lag_records": 1_000}
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

        # every process of Dagster dies at once; the streams go on
        held = {release: tokens(operations, release) for release in (V1, V2)}
        pids = {release: beat_of(settings, release).pid for release in (V1, V2)}
        assert not dev.processes() & set(pids.values())
        dev.kill()
        for release in (V1, V2):
            dev.until(f"{release} stands still", goes_on(settings, release), timeout_s=60)

        # back again, it finds them running, and starts nothing
        dev.start()
        mark = operations.registry.state().live(APP)
        told = len(dev.materializations("live", APP))
        dev.until(
            "the supervisor has not told of the adopted release",
            lambda: len(dev.materializations("live", APP)) > told,
            timeout_s=150,
        )
        newest = dev.materializations("live", APP)[0]
        assert newest["release"] == V2 and newest["switch"] == 2
        assert {release: tokens(operations, release) for release in (V1, V2)} == held
        assert {release: beat_of(settings, release).pid for release in (V1, V2)} == pids
        assert operations.registry.state().live(APP) == mark
        for release in (V1, V2):
            dev.until(f"{release} stands still", goes_on(settings, release), timeout_s=60)


def test_a_run_that_fails_says_so(dev: DagsterDev) -> None:
    """The client of these tests sees failures: else the tests above could not fail."""
    with pytest.raises(RunFailed, match="there is no release"):
        dev.run_job("start", config={"release": "stock-stats.v9"}, timeout_s=STEP_TIMEOUT_S)


def test_the_log_has_no_traceback_of_ours(dev: DagsterDev) -> None:
    log = dev.log.read_text()
    # both sensors ran to their end, the supervisor beside a release: else no traceback says nothing
    assert re.search(r"Sensor supervisor skipped: running: .*\.v\d", log), log[-4000:]
    assert "Sensor watch_after_promotion skipped: no promotion" in log, log[-4000:]
    assert "orchestration/defs/supervisor.py" not in log
    assert "orchestration/defs/watching.py" not in log
