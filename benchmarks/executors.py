"""How many results a second a release writes whose tasks run in executors, and what its driver needs meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyspark

from benchmarks.hydrating import Open, hydrate, trades_of
from benchmarks.race.queries import PASS
from orchestration.local.ports import claim
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.stage import plan_stage
from orchestration.sources import produce, sources_for
from orchestration.sources.prices import REAL
from pipelines.engine.jvm.jars import PROJECT_ROOT
from pipelines.kafka.log import LogReader
from pipelines.model.names import HEARTBEATS_TOPIC, release_name
from pipelines.model.progress import read_heartbeat
from pipelines.settings import Settings

# each has one core
EXECUTORS, RECORDS = (1, 2, 4), 3_000_000
_SPARK_CLASS = Path(pyspark.__path__[0]) / "bin" / "spark-class"
_HOST = "127.0.0.1"
_START_S = 60.0


def measure(opened: Open, records: int, counts: Sequence[int], folder: Path) -> dict[str, Any]:
    """A release that writes each trade that it reads, with its tasks in the driver (`local`: on 2 cores) and in executors of
    one core each (their number), all on this machine. What `hydrate` returns, and of the driver's JVM the most `heap_mb` that
    a heartbeat has told. `results_per_s`: as `records_per_s`. `folder`: for the logs of Spark's master and worker.
    """
    settings = opened().settings
    produce(settings, sources_for("stock-stats", trades_of("dense", records, REAL)), history=records)
    report = {"local": _measure(opened, 1, records)}
    with standalone(opened(), folder, sum(counts)) as master:
        for version, count in enumerate(counts, 2):
            elsewhere = partial(opened, **_executors(settings, master, count))
            report[str(count)] = _measure(elsewhere, version, records)
    return report


def _executors(settings: Settings, master: str, count: int) -> dict[str, Any]:
    return {
        "spark_master": master, "driver_host": _HOST, "executors": count, "executor_cores": 1,
        "bootstrap_servers": settings.bootstrap, "store_url": str(settings.store_dir), "store_shared": True,
    }  # fmt: skip


def _measure(opened: Open, version: int, records: int) -> dict[str, Any]:
    context, name = opened(), release_name(PASS.app, version)
    if version == 1:
        plan = plan_stage(context, PASS.app, version=1, code_dir=PASS.code_dir)
    else:
        first = release_name(PASS.app, 1)
        plan = plan_stage(context, PASS.app, version=version, same_as=first, correction="with executors")
    execute(context, plan)
    found = hydrate(opened, name, records)
    heap_mb = _heap_mb(context.settings, name)
    return {**found, "results_per_s": round(found["results"] / found["seconds"]), "heap_mb": heap_mb}


def _heap_mb(settings: Settings, release: str) -> int:
    reader = LogReader(settings, HEARTBEATS_TOPIC)
    try:
        beats = [read_heartbeat(value) for values in reader.records_to(reader.end()) for _, value in values]
    finally:
        reader.close()
    return round(max(beat.heap_used_bytes for beat in beats if beat.release == release) / 2**20)


@contextmanager
def standalone(context: Context, folder: Path, cores: int) -> Iterator[str]:
    """The URL of a standalone cluster of Spark on this machine, with one worker; it ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    port = claim()
    master = f"spark://{_HOST}:{port.port}"
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        daemons.append(_daemon(folder, "master.Master", "--host", _HOST, "--port", port.port, "--webui-port", 0))
        daemons.append(_daemon(folder, "worker.Worker", "--host", _HOST, "--webui-port", 0, "--cores", cores,
                               "--memory", f"{cores * 2}g", "--work-dir", folder / "work", master))  # fmt: skip
        log = folder / "master.Master.log"
        context.until("no worker has registered", lambda: "Registering worker" in log.read_text(errors="replace"),
                      timeout_s=_START_S, fix=f"see {log}")  # fmt: skip
        yield master
    finally:
        for daemon in daemons:
            os.killpg(daemon.pid, signal.SIGTERM)
            daemon.wait(30)


def _daemon(folder: Path, name: str, *arguments: object) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(PROJECT_ROOT),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder),
    }
    command = ["bash", str(_SPARK_CLASS), f"org.apache.spark.deploy.{name}", *map(str, arguments)]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                start_new_session=True)  # fmt: skip
