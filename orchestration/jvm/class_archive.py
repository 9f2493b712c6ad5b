"""Writes the archives that let the JVMs of drivers and of the broker map their classes instead of loading them.

Class data sharing (JEP 350): a JVM that has done a driver's work dumps the classes that it loaded. A real driver on a
broker of its own makes the archive, so it holds what drivers need. A driver also works without the archive, but starts
more slowly.

All files are in the folder `class-archive` beside the archive. A failed attempt leaves its logs there until the next
attempt.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from orchestration.launchers.local import LocalLauncher
from orchestration.local.broker import EmbeddedBroker
from orchestration.local.jars import up_to_date as newer_than
from orchestration.local.ports import claim
from orchestration.local.running import end_all
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.sources import Options, produce
from orchestration.sources.base import PerSecond, Record
from pipelines.engine.expressions import MANY_RECORDS
from pipelines.engine.jvm.jars import archiving, broker_archive, class_archive, jars_dir, pyspark_jars, scala_jar
from pipelines.engine.spark_conf import session_conf
from pipelines.errors import SwitchyardError
from pipelines.kafka.registry import Registry
from pipelines.settings import Settings

# an app that loads what apps with windows and with joins load
APP, RELEASE = "warm-up", "warm-up.v1"
# a small batch, a large one, and one more: the driver interprets the app's expressions, then compiles them
RECORDS = (2_000, MANY_RECORDS, 2_000)
CODE = Path(__file__).parent / "warm_up"
# kept after a failed attempt: the broker's folder (log and configuration), the logs, and where the JVM writes crash
# reports
_KEPT = ("broker", "logs", "run")
_BOOT_TIMEOUT_S = 180.0
_DUMP_TIMEOUT_S = 120.0
# each class is loaded once; the archive holds nothing that the optimizing compiler produces
_QUICK = {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


class _Trades(PerSecond):
    """The input of the app. The trades of `switchyard produce` need prices from an extra, which may not be installed."""

    topic = "trades"
    per_second = 200
    stream = 1

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        drawn = (random.integers(0, most, n).tolist() for most in (10, 2, 10_000, 1_000))
        return [
            (b"T%d" % ticker, b'{"side":"%b","price":%d.%02d,"size":%d}' % (b"ask" if ask else b"bid", cents // 100, cents % 100, size), time_ms)
            for ticker, ask, cents, size, time_ms in zip(*drawn, times_ms, strict=True)
        ]  # fmt: skip


class _Dumping(LocalLauncher):
    """Starts the driver whose JVM writes the archive when it ends, and keeps a handle on both processes."""

    def __init__(self, settings: Settings, dumped: Path) -> None:
        conf = session_conf(settings, heap_mb=settings.driver_heap_mb, cores=settings.driver_cores)
        options = " ".join([conf["spark.driver.extraJavaOptions"], *archiving(dumped)])
        more = {**settings.spark, "spark.driver.extraJavaOptions": options}
        super().__init__(settings.model_copy(update={"spark": more}))
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self, release: str, *, force: bool = False, settle: bool = False) -> subprocess.Popen[bytes]:
        self._process = super().spawn(release, force=force, settle=settle)
        return self._process

    def await_end(self) -> None:
        """Waits until the JVM has ended too. It outlives the driver while it writes the archive."""
        deadline = time.monotonic() + _DUMP_TIMEOUT_S
        while self._runs():
            if time.monotonic() > deadline:
                raise SwitchyardError(f"Java did not write the class archive in {_DUMP_TIMEOUT_S:g} s")
            time.sleep(0.1)

    def kill(self) -> None:
        """Ends what still runs. Otherwise a driver would wait for its broker forever."""
        if self._process is not None and self._runs():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)

    def _runs(self) -> bool:
        if self._process is None:
            return False
        # the group's leader is a child of this process; until it is reaped, it stays in the group
        self._process.poll()
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def work_folder(path: Path) -> Path:
    """The folder where the archive for `path` is made, and where a failed attempt leaves its logs."""
    return path.parent / "class-archive"


def build(path: Path) -> None:
    """Writes the archive to `path`, whole or not at all.

    Raises SwitchyardError if Java could not write it, and whatever else fails on the way. The logs of a failed attempt
    stay in `work_folder(path)`.
    """
    work = work_folder(path)
    # claimed while the broker runs, so that another set-up on this machine takes other ports
    with claim() as own:
        settings = Settings.apart(
            work, bootstrap_servers=None, kafka={}, driver_kafka={}, replication_factor=1, spark=_QUICK,
            broker_port=own.port, broker_heap_mb=512, driver_heap_mb=512,
            # the JVM writes the archive when it ends
            jvm_end_timeout_s=_DUMP_TIMEOUT_S,
        )  # fmt: skip
        # the broker writes an archive of its own, unless there is one
        of_broker, known = broker_archive(), _broker_up_to_date()
        broker = EmbeddedBroker(settings, archive_to=None if known else work / of_broker.name)
        _clear(broker, work)
        try:
            _dump(settings, broker, work / path.name)
            for written in (path,) if known else (of_broker, path):
                if not (work / written.name).is_file():
                    raise SwitchyardError(f"Java wrote no {written.name}")
                # a driver's files are for its user only, but other users may share the jars
                (work / written.name).chmod(0o644)
                os.replace(work / written.name, written)
        except BaseException:
            _keep_logs(work)
            raise
    shutil.rmtree(work, ignore_errors=True)


def _clear(broker: EmbeddedBroker, work: Path) -> None:
    """Empties the folder. First ends what a killed set-up left running there."""
    end_all([work])
    broker.stop()
    shutil.rmtree(work, ignore_errors=True)
    (work / "logs").mkdir(parents=True)


def _keep_logs(work: Path) -> None:
    """Keeps the logs and the traceback of the attempt. A file that can't be written or deleted must not hide the error."""
    with suppress(OSError):
        (work / "logs" / "set-up.log").write_text(traceback.format_exc())
    with suppress(OSError):
        for path in (*work.iterdir(), *work.glob("broker/data*")):
            if path.is_file():
                path.unlink(missing_ok=True)
            elif path.name not in _KEPT:
                shutil.rmtree(path, ignore_errors=True)


def _dump(settings: Settings, broker: EmbeddedBroker, dumped: Path) -> None:
    launcher = _Dumping(settings, dumped)
    # in reverse order; the broker is stopped even if the driver can't be ended
    with ExitStack() as ends:
        ends.callback(broker.stop, _DUMP_TIMEOUT_S)
        ends.callback(launcher.kill)
        broker.start(_BOOT_TIMEOUT_S)
        _work(settings, launcher)
        launcher.await_end()


def _work(settings: Settings, launcher: LocalLauncher) -> None:
    """Lets a driver read some records, then stops it."""
    source, written = _Trades(Options()), RECORDS[0]
    produce(settings, source, history=written)
    with Registry(settings, actor="set-up") as registry:
        context = Context(settings=settings, registry=registry, launcher=launcher)
        execute(context, plan_stage(context, APP, version=1, code_dir=CODE))
        execute(context, plan_start(context, RELEASE))
        _await_read(context, written)
        for records in RECORDS[1:]:
            produce(settings, source, history=records)
            written += records
            _await_read(context, written)
        execute(context, plan_stop(context, RELEASE))


def _await_read(context: Context, records: int) -> None:
    # the app reads its input twice: as trades, and as prices
    context.until(
        f"{RELEASE} has not read its input",
        lambda: (p := context.progress(RELEASE)) is not None and p.total.rows_in >= 2 * records,
        timeout_s=_BOOT_TIMEOUT_S,
    )


def up_to_date() -> bool:
    """Whether there are archives for these jars, this pyspark and these Scala classes, of drivers and of the broker."""
    return newer_than(class_archive(), scala_jar(), pyspark_jars()) and _broker_up_to_date()


def _broker_up_to_date() -> bool:
    # its jars are put in place as a whole; Java takes no archive of jars that were copied anew
    return newer_than(broker_archive(), jars_dir() / "broker")


def write() -> None:
    """Writes the archives. Raises SwitchyardError that says why, whatever fails: drivers also start without it."""
    path = class_archive()
    try:
        build(path)
        # those of earlier sources, of an earlier pyspark at the same place, or of an earlier broker
        place = path.stem.rpartition("-")[2]
        for old in {*path.parent.glob(f"spark-classes-*-{place}.jsa"), *path.parent.glob("broker-classes-*.jsa")}:
            if old not in (path, broker_archive()):
                old.unlink()
    except Exception as error:
        reason = str(error) if isinstance(error, SwitchyardError) else f"{type(error).__name__}: {error}"
        logs = work_folder(path) / "logs"
        more = f"its logs: {logs}; " if logs.is_dir() else ""
        raise SwitchyardError(
            f"no class archive, so drivers will start more slowly: {reason}",
            f"{more}`switchyard jars` tries again; `switchyard jars --no-archive` does without it",
        ) from error
