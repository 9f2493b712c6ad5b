"""Writes the archive that lets a driver's JVM map Spark's classes instead of loading them: `python -m orchestration.local.class_archive`.

Class data sharing (JEP 350): a JVM that has done a driver's work dumps the classes it loaded. Made by a real driver on a
broker of its own, so that what is in it is what drivers need. A driver without it works as well, and starts slower.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from orchestration.launchers.local import LocalLauncher
from orchestration.local.broker import EmbeddedBroker
from orchestration.local.preflight import check_port
from orchestration.local.server_config import ports
from orchestration.operations import release as rel
from orchestration.operations.context import Context
from orchestration.sources import Options, produce, source_for
from pipelines.engine.jars import class_archive
from pipelines.engine.session import session_conf
from pipelines.errors import SwitchyardError
from pipelines.kafka.registry import Registry
from pipelines.settings import Settings

APP, RELEASE, RECORDS = "stock-stats", "stock-stats.v1", 2_000
# beside the broker of `switchyard up`, which may be running; so many ports above it, as another set-up may run, too
_PORTS_ABOVE = range(40, 60, 2)
_BOOT_TIMEOUT_S = 180.0
_DUMP_TIMEOUT_S = 120.0
# each class is loaded once: what the optimising compiler makes of it is not in the archive
_QUICK = {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


class _Dumping(LocalLauncher):
    """Starts the driver whose JVM writes the archive at its end, and keeps hold of both."""

    def __init__(self, settings: Settings, dumped: Path) -> None:
        conf = session_conf(settings, heap_mb=settings.driver_heap_mb, cores=settings.driver_cores)
        options = conf["spark.driver.extraJavaOptions"] + f" -XX:ArchiveClassesAtExit={dumped} -Xlog:cds=off"
        more = {**settings.spark, "spark.driver.extraJavaOptions": options}
        super().__init__(settings.model_copy(update={"spark": more}))
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self, release: str, *, force: bool = False, settle: bool = False) -> subprocess.Popen[bytes]:
        self._process = super().spawn(release, force=force, settle=settle)
        return self._process

    def await_end(self) -> None:
        """Waits until the JVM has ended, too, which outlives the driver while it writes."""
        deadline = time.monotonic() + _DUMP_TIMEOUT_S
        while self._runs():
            if time.monotonic() > deadline:
                raise SwitchyardError(f"Java did not write the class archive in {_DUMP_TIMEOUT_S:g} s")
            time.sleep(0.1)

    def kill(self) -> None:
        """Ends what still runs: a driver would wait for its broker for ever."""
        if self._process is not None and self._runs():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)

    def _runs(self) -> bool:
        if self._process is None:
            return False
        # the group's leader is a child of this process: not taken leave of, it would stay in the group
        self._process.poll()
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def build(path: Path) -> None:
    """Writes the archive to `path`, whole or not at all. Raises SwitchyardError where it could not be made."""
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=path.parent) as work:
        dumped = Path(work) / path.name
        settings = Settings(
            bootstrap_servers=None, kafka={}, spark_master=None, replication_factor=1, spark=_QUICK,
            state_dir=Path(work) / "state", broker_port=_free_port(), broker_heap_mb=512, driver_heap_mb=512,
            # the JVM writes the archive at its end
            jvm_end_timeout_s=_DUMP_TIMEOUT_S,
        )  # fmt: skip
        broker, launcher = EmbeddedBroker(settings), _Dumping(settings, dumped)
        # the last first; a driver that can't be ended keeps nobody from stopping the broker
        with ExitStack() as ends:
            ends.callback(broker.stop)
            ends.callback(launcher.kill)
            broker.start(_BOOT_TIMEOUT_S)
            _work(settings, launcher)
            launcher.await_end()
        if not dumped.is_file():
            raise SwitchyardError("Java wrote no class archive")
        os.replace(dumped, path)


def _free_port() -> int:
    """One that a broker can have, and its controller the next; the setting's own where there is none."""
    own = Settings().broker_port
    above = (own + more for more in _PORTS_ABOVE)
    return next((port for port in above if port < 65535 and not any(map(check_port, ports(port)))), own)


def _work(settings: Settings, launcher: LocalLauncher) -> None:
    """Has a driver read some records and stop."""
    produce(settings, source_for(APP, Options(per_second=200)), history=RECORDS)
    with Registry(settings, actor="set-up") as registry:
        context = Context(settings=settings, registry=registry, launcher=launcher)
        rel.execute(context, rel.plan_stage(context, APP, version=1))
        rel.execute(context, rel.plan_start(context, RELEASE))
        context.until(
            f"{RELEASE} has not read its input",
            lambda: (p := context.progress(RELEASE)) is not None and p.total.rows_in >= RECORDS,
            timeout_s=_BOOT_TIMEOUT_S,
        )
        rel.execute(context, rel.plan_stop(context, RELEASE))


def main() -> None:
    """Makes the archive. That it could not be made is said, and stops nothing."""
    try:
        path = class_archive()
        path.unlink(missing_ok=True)
        build(path)
        size_mib = path.stat().st_size >> 20
    # whatever it was: all that is lost is time at each start of a driver
    except Exception as error:
        reason = str(error) if isinstance(error, SwitchyardError) else f"{type(error).__name__}: {error}"
        print(f"no class archive, drivers will start slower: {reason}")
        print("  to try again: python -m orchestration.local.class_archive")
    else:
        print(f"class archive written, {size_mib} MiB: {path}")


if __name__ == "__main__":
    main()
