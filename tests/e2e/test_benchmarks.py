"""`make bench` with little data: it must end with its figures; their values don't matter.

One benchmark runs as a user starts it. The others run here, with drivers as threads and commands in this process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import fleet, growth, latency
from benchmarks.__main__ import measured, parsed
from pipelines.kafka.topics import topic_names
from pipelines.settings import Settings
from tests.conftest import sweep
from tests.e2e.cluster import ROOT, Cluster
from tests.e2e.harness import SMALL
from tests.shared.ports import port_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


@pytest.fixture
def cluster(broker: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[Cluster]:
    """An empty cluster for each test: the benchmarks have one app."""
    cluster = Cluster(broker, tmp_path, lambda: spark, trigger_s=0.1, standby_trigger_s=0.1, heartbeat_s=0.15)
    with cluster.trials():
        yield cluster
    cluster.close()
    sweep(broker)


def bench(cluster: Cluster, *options: str) -> dict[str, Any]:
    """What `python -m benchmarks` finds with `options`."""

    def switchyard(*arguments: str) -> str:
        said = cluster.cli(*arguments)
        assert said.code == 0, said.text
        return said.out

    return measured(cluster.context, switchyard, parsed(options), cluster.folder / "work")


def test_hydration_is_measured_beside_the_raw_limit() -> None:
    command = [sys.executable, "-m", "benchmarks", "--records", "3000", "--port", str(port_of("benchmark"))]
    # it replaces the state folder and the port by its own
    small = Settings(**{**SMALL, "trigger_s": 0.1, "broker_heap_mb": 256})
    done = subprocess.run(
        command, cwd=ROOT, env=small.child_environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["hydrate"]["records"] > 0 and found["hydrate"]["records_per_s"] > 0
    assert found["raw_consumer_records_per_s"] > 0 and found["hydrate_to_raw"] > 0


def test_results_are_measured_with_executors() -> None:
    command = [sys.executable, "-m", "benchmarks", "executors", "--executors", "1", "--records", "3000"]
    small = Settings(
        **{**SMALL, "trigger_s": 0.1, "broker_heap_mb": 256, "executor_heap_mb": 512, "boot_timeout_s": 300}
    )
    done = subprocess.run(
        [*command, "--port", str(port_of("benchmark with executors"))], cwd=ROOT, env=small.child_environment(),
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [*found] == ["local", "1"]
    assert all(each["results_per_s"] > 0 and each["heap_mb"] > 0 for each in found.values())


def test_apps_are_measured_one_after_another(cluster: Cluster) -> None:
    # one that reads what another one makes of a third one's result; then that other one for itself
    apps = ("top-stocks", "daily-gains", "product-views")
    found = bench(cluster, "apps", "--apps", *apps, "--records", "3000")
    assert {name: app["kind"] for name, app in found.items()} == {
        "top-stocks": "python state", "daily-gains": "sql", "product-views": "python state"
    }  # fmt: skip
    for app in found.values():
        assert app["records"] > 0 and app["records_per_s"] > 0 and app["raw"] > 0 and app["to_raw"] > 0
        assert app["keys"] > 0 and app["batches"] > 0 and app["results"] > 0
        # drivers are threads here, with no session of their own
        assert {"cpu_s", "records_per_cpu_s"} <= app.keys()
    # nothing is left, so that the memory and the disk of a run don't depend on the number of apps
    assert {release.state for release in cluster.state.releases.values()} == {"retired"}
    assert not {"trades", "product-views"} & topic_names(cluster.settings)


def test_a_switch_is_measured_each_way_and_round(cluster: Cluster) -> None:
    found = bench(cluster, "switch", "--keys", "200", "--rounds", "2")
    assert (found["keys"], found["changed"]) == (200, 200)
    assert {name: len(found[name]) for name in ("promote_s", "rollback_s", "planned_s", "delta_applied_s")} == {
        "promote_s": 2, "rollback_s": 2, "planned_s": 4, "delta_applied_s": 4
    }  # fmt: skip
    assert min(found["promote_s"] + found["rollback_s"]) > 0


def test_a_reset_is_measured(cluster: Cluster) -> None:
    found = bench(cluster, "reset", "--keys", "8000")
    assert found.pop("keys") == 8_000
    assert set(found) == {"new", "keep", "truncate", "tombstone"}
    assert all(took["plan_s"] > 0 and took["done_s"] > 0 for took in found.values())


def test_commands_are_measured(cluster: Cluster) -> None:
    found = bench(cluster, "commands", "--rounds", "1")
    names = ("stage", "diff", "check", "promote", "rollback", "status", "--help")
    assert [*found] == [f"{name}_s" for name in names]
    assert all(len(took) == 1 and took[0] > 0 for took in found.values())


def test_the_latency_of_a_live_release_is_measured_at_the_pace_that_is_shipped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SECONDS": 4.0, "WARM_UP_S": 1.0, "_IDLE_S": 0.5, "HISTORY": 2_000}.items():
        monkeypatch.setattr(latency, name, value)
    shipped = {name: Settings.model_fields[name].default for name in ("target_latency_s", "trigger_s")}
    # raises if a record is not read
    found = latency.measure(cluster.context(**shipped), 2, ["large-orders"])["large-orders"]
    assert len(found["p50_ms"]) == 2 and min(found["batches_per_s"]) > 0
    assert all(0 < half <= most for half, most in zip(found["p50_ms"], found["p99_ms"], strict=True))


def test_the_memory_of_idle_releases_is_measured(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REST_S", "IDLE_S"):
        monkeypatch.setattr(fleet, name, 0.5)
    found = bench(cluster, "fleet", "--releases", "2", "--records", "2000")
    assert found["releases"] == 2 and len(found["one"]["rss_mb"]) == 1 and len(found["all"]["rss_mb"]) == 2
    # drivers are threads here, with no session of their own
    assert {"memory_mb", "rss_mb", "cores"} == found["one"].keys() == found["all"].keys() and "further_mb" in found


def test_a_long_registry_is_measured(cluster: Cluster) -> None:
    found = growth.measure(cluster.context(), sizes=(500, 1_000), rounds=1)
    assert found["python_s"]["seconds"] > 0
    for size in (500, 1_000):
        took = found[f"{size:,} entries"]
        # what each found: releases, seconds until the first record, entries
        # filled up to about that size by whole operations
        assert took["first"]["said"] == "50" and 0.9 * size < int(took["log"]["said"]) <= size
        assert float(took["follower"]["said"]) > 0 and took["status"]["said"]
