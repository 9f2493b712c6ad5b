"""Writes the archive that lets a driver's JVM map Spark's classes instead of loading them: `python -m orchestration.local.class_archive`.

Class data sharing (JEP 350): a JVM that has done a driver's work dumps the classes it loaded. Made by a real driver on a
broker of its own, so that what is in it is what drivers need. A driver without it works as well, and starts slower.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path

from orchestration.launchers.local import LocalLauncher
from orchestration.local.broker import EmbeddedBroker
from orchestration.operations import release as rel
from orchestration.operations.context import Context
from orchestration.sources import Options, produce, source_for
from pipelines.engine.jars import class_archive
from pipelines.engine.session import session_conf
from pipelines.errors import SwitchyardError
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.registry import Registry
from pipelines.settings import Settings

APP, RELEASE, RECORDS = "stock-stats", "stock-stats.v1", 2_000
_BOOT_TIMEOUT_S = 180.0
_DUMP_TIMEOUT_S = 120.0
# each class is loaded once: what the optimising compiler makes of it is not in the archive
_QUICK = {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


def build(path: Path) -> None:
    """Writes the archive to `path`, whole or not at all. Raises SwitchyardError where it could not be made."""
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=path.parent) as work:
        dumped = Path(work) / path.name
        settings = Settings(
            bootstrap_servers=None, kafka={}, spark_master=None, replication_factor=1, spark=_QUICK,
            state_dir=Path(work) / "state", broker_port=_free_port(), broker_heap_mb=512, driver_heap_mb=512,
        )  # fmt: skip
        broker = EmbeddedBroker(settings)
        broker.start(_BOOT_TIMEOUT_S)
        try:
            process_group = _work(settings, dumped)
            _await_end(process_group)
        finally:
            broker.stop()
        if not dumped.is_file():
            raise SwitchyardError(f"Java wrote no class archive; see {settings.state_dir / 'logs'}")
        os.replace(dumped, path)


def _work(settings: Settings, dumped: Path) -> int:
    """Runs a driver over some records. Returns its process group, in which its JVM is still dumping."""
    produce(settings, source_for(APP, Options(per_second=200)), history=RECORDS)
    options = session_conf(settings, heap_mb=settings.driver_heap_mb, cores=settings.driver_cores)
    dumping = options["spark.driver.extraJavaOptions"] + f" -XX:ArchiveClassesAtExit={dumped} -Xlog:cds=off"
    of_driver = settings.model_copy(update={"spark": {**_QUICK, "spark.driver.extraJavaOptions": dumping}})
    with Registry(settings, actor="set-up") as registry:
        context = Context(settings=settings, registry=registry, launcher=LocalLauncher(of_driver))
        rel.execute(context, rel.plan_stage(context, APP, version=1))
        rel.execute(context, rel.plan_start(context, RELEASE))
        context.until(
            f"{RELEASE} has not read its input",
            lambda: (p := context.progress(RELEASE)) is not None and p.total.rows_in >= RECORDS,
            timeout_s=_BOOT_TIMEOUT_S,
        )
        pid = latest_heartbeats(settings)[RELEASE].pid
        rel.execute(context, rel.plan_stop(context, RELEASE))
    return pid


def _await_end(process_group: int) -> None:
    # its leader is a child of this process: taken leave of, or it would stay in the group
    os.waitpid(process_group, 0)
    deadline = time.monotonic() + _DUMP_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            os.killpg(process_group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise SwitchyardError(f"Java did not write the class archive in {_DUMP_TIMEOUT_S:g} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Makes the archive. That it could not be made is said, and stops nothing."""
    path = class_archive()
    path.unlink(missing_ok=True)
    try:
        build(path)
    except SwitchyardError as error:
        print(f"no class archive, drivers will start slower: {error}")
    else:
        print(f"class archive written, {path.stat().st_size >> 20} MiB: {path}")


if __name__ == "__main__":
    main()
