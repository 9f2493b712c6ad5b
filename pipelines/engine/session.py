"""The Spark session of a driver or a job, with limited memory, and Spark's Kafka options from the settings."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from py4j.java_gateway import java_import  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pipelines.engine import origins
from pipelines.engine.expressions import INTERPRETED
from pipelines.engine.guard import INSTALLED, WORKERS, environment_for
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.jvm.jars import class_archive, spark_jars
from pipelines.kafka.login import by_reference, java_properties
from pipelines.private import UMASK, private
from pipelines.secrets import SPARK_REDACTION, is_secret, withheld
from pipelines.settings import Settings

log = logging.getLogger("switchyard.driver")

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.ReusingRocksDBStateStoreProvider"
_JVM = Path(__file__).parent / "jvm"
_LOGGING = {
    # the second file replaces the appender of the first
    "text": (_JVM / "log4j2.properties").as_uri(),
    "json": ",".join((_JVM / name).as_uri() for name in ("log4j2.properties", "log4j2-json.properties")),
}
_LOCAL_FILES = "io.switchyard.LocalFiles"
_FILES = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
_STATE = "spark.sql.streaming.stateStore"
_LOCAL_IP = "SPARK_LOCAL_IP"
# The optimizing compiler (C2) waits until a method has run 40 times as often as by default. Otherwise it takes a third of
# the CPU time of a starting driver. History is read no slower: code that runs for each record is compiled within two
# seconds. Defaults: `java -XX:+PrintFlagsFinal`, Java 17
_COMPILE_LATER = (
    "-XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=24000 "
    "-XX:Tier4CompileThreshold=600000 -XX:Tier4BackEdgeThreshold=1600000"
)
# PySpark calls these by their last names only, and imports just their packages. Unless they are imported by name, each
# call looks for them in one package after the other, in all of Spark's jars
_OFTEN_CALLED = ("org.apache.spark.api.python.PythonUtils", "org.apache.spark.sql.api.python.PythonSQLUtils")
# by default, the classes loaded at the start (over 21 MB) already cause a full garbage collection
_ROOM_FOR_CLASSES = "-XX:MetaspaceSize=256m"


def session_conf(
    settings: Settings, *, heap_mb: int, cores: int, brief: bool = False, few_rows: bool = False
) -> dict[str, str]:
    """Spark properties by name. RocksDB takes memory besides the heap, at most a quarter of the heap's size.

    `brief`: the session ends within a minute. `few_rows`: its batches have some hundred rows at most, so Spark interprets
    an app's expressions and compiles none.
    """
    master = settings.spark_master or f"local[{cores}]"
    # in a trial of some seconds the optimizing compiler costs more than it gains
    compiler = (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        if brief
        else f"-XX:+UseParallelGC {_COMPILE_LATER} {_ROOM_FOR_CLASSES}"
    )
    work = settings.state_dir / "spark"
    return {
        "spark.master": master,
        "spark.driver.memory": f"{heap_mb}m",
        **_jars_conf(master),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(work),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        # Hadoop uses this mask, not that of the process
        "spark.hadoop.fs.permissions.umask-mode": f"{UMASK:03o}",
        # two properties, so that a setting can replace one and keep the other
        "spark.driver.defaultJavaOptions": compiler,
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={work} -Dlog4j2.configurationFile={_LOGGING[settings.log_format]} {_archived()}",
        **_ui_conf(settings.spark_ui_port),
        "spark.sql.session.timeZone": "UTC",
        origins.PROPERTY: "false",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        # a second copy of a task would write, too
        "spark.speculation": "false",
        "spark.redaction.regex": SPARK_REDACTION,
        "spark.sql.redaction.options.regex": f"{SPARK_REDACTION}|url",
        "spark.sql.streaming.metricsEnabled": "true",
        "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "false",
        # With "min", an idle input would hold all others, and where the watermark stands would depend on when the driver
        # last started: the checkpoint has no watermark of each input
        "spark.sql.streaming.multipleWatermarkPolicy": "max",
        "spark.sql.streaming.minBatchesToRetain": "20",
        **_state_conf(heap_mb),
        # between polls without new records; each poll asks the broker
        "spark.sql.streaming.pollingDelay": "200ms",
        # the default starts a process for each local file that it renames
        "spark.sql.streaming.checkpointFileManagerClass": _FILES,
        "spark.hadoop.fs.file.impl": _LOCAL_FILES,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        **(INTERPRETED if few_rows else {}),
        **settings.spark,
    }


def _ui_conf(port: int) -> dict[str, str]:
    """`port`: of Spark's UI; 0: there is none."""
    return {
        "spark.ui.enabled": str(port > 0).lower(),
        **({"spark.ui.port": str(port), "spark.ui.prometheus.enabled": "true"} if port else {}),
        # any page in a browser on this machine could end a batch by a link
        "spark.ui.killEnabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _jars_conf(master: str) -> dict[str, str]:
    """The JVM maps archived classes only from the class path; executors on other hosts must be sent the jars."""
    jars = spark_jars()
    if not master.startswith("local"):
        return {"spark.jars": ",".join(map(str, jars))}
    return {
        "spark.driver.extraClassPath": ":".join(map(str, jars)),
        "spark.python.daemon.module": "pipelines.engine.python_daemon",
    }


def _state_conf(heap_mb: int) -> dict[str, str]:
    return {
        f"{_STATE}.providerClass": _ROCKSDB,
        f"{_STATE}.checkpointFormatVersion": "1",
        f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
        # the driver after a killed one replays the changes since the last snapshot: up to 60 s of them by default
        f"{_STATE}.maintenanceInterval": "15s",
        # counting rows would look up each key
        f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",
        f"{_STATE}.rocksdb.boundedMemoryUsage": "true",
        f"{_STATE}.rocksdb.maxMemoryUsageMB": str(max(64, heap_mb // 4)),
    }


def _archived() -> str:
    """Options that map Spark's classes. If the archive is for another Java or other jars, Java silently ignores it."""
    path = class_archive()
    return f"-XX:SharedArchiveFile={path} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off" if path.is_file() else ""


def build_session(
    settings: Settings,
    name: str,
    *,
    heap_mb: int | None = None,
    cores: int | None = None,
    brief: bool = False,
    few_rows: bool = False,
) -> SparkSession:
    """The session of this process, in this process's JVM. Starts what isn't there yet. Options as in `session_conf`."""
    builder = SparkSession.builder.appName(name)
    heap_mb, cores = heap_mb or settings.driver_heap_mb, cores or settings.driver_cores
    conf = session_conf(settings, heap_mb=heap_mb, cores=cores, brief=brief, few_rows=few_rows)
    for key, value in conf.items():
        builder = builder.config(key, value)

    def started() -> SparkSession:
        _need_jvm(settings, conf)
        SparkContext.getOrCreate(SparkConf().setAll(list(conf.items())).setAppName(name))
        with _late_functions():
            spark = builder.getOrCreate()
        _prepare_workers(spark)
        return spark

    # whoever catches the error reports it
    for logger in origins.LOGGERS:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with ThreadPoolExecutor(1, "spark") as pool:
        return pool.submit(started).result()


@contextmanager
def _late_functions() -> Iterator[None]:
    """Sessions that start in the block make Spark's functions for machine learning when one is used, see LateFunctions."""
    functions = java_class("org.apache.spark.sql.switchyard.LateFunctions")
    functions.enter()
    try:
        yield
    finally:
        functions.exit()


def begin_jvm(settings: Settings) -> None:
    """Starts the JVM of a driver's session while this process does other things. `build_session` waits for it."""
    conf = session_conf(settings, heap_mb=settings.driver_heap_mb, cores=settings.driver_cores)

    def started() -> None:
        try:
            _need_jvm(settings, conf)
        except Exception as error:
            # `build_session` tries again and raises
            log.info("the JVM did not start early: %s", error)

    threading.Thread(target=started, name="spark", daemon=True).start()


_starting = threading.Lock()


def _need_jvm(settings: Settings, conf: dict[str, str]) -> None:
    """Starts the JVM of this process, unless it has one. Call it on a thread of its own, whose priority it changes."""
    (private(settings.state_dir) / "spark").mkdir(exist_ok=True)
    # workers must run the interpreter that the driver runs
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # where the UI listens; what an operator has set for other programs doesn't open it, only what is set for drivers
    if _LOCAL_IP not in settings.driver_environment:
        os.environ[_LOCAL_IP] = "127.0.0.1"
    # changes this thread only; the JVM inherits it
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(settings.driver_nice, os.getpriority(os.PRIO_PROCESS, thread)))
    with _starting:
        if SparkContext._gateway is None:
            _yield_session(_start_jvm(conf, settings.driver_environment), settings.driver_nice)


def _start_jvm(conf: dict[str, str], environment: tuple[str, ...]) -> int:
    """Starts the JVM of this process. Returns the pid of its session leader.

    Secrets are not on its command line, which any user can see; they are set once it runs. The environment of the JVM and
    of its Python workers holds no secret either. A driver leads its own session; elsewhere the JVM gets a new session. It
    still ends with this process.
    """
    leads = os.getsid(0) == os.getpid()
    shown = [(name, value) for name, value in conf.items() if not is_secret(name)]
    with withheld(environment):
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            SparkConf(loadDefaults=False).setAll(shown), {"start_new_session": not leads}
        )
    for name in _OFTEN_CALLED:
        java_import(gateway.jvm, name)
    SparkContext._ensure_initialized(gateway=gateway)
    return os.getpid() if leads or gateway.proc is None else int(gateway.proc.pid)


def _yield_session(pid: int, nice: int) -> None:
    """Gives other sessions preference over that of `pid`, if Linux groups processes by session.

    Then a thread's nice value only counts within its session (autogroups, sched(7)). The JVM has its own session so that
    this does not slow down an operator's shell.
    """
    # the file is missing without autogroups
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def _jvm() -> Popen[bytes] | None:
    """The JVM's process; None if this process has no JVM."""
    return SparkContext._gateway.proc if SparkContext._gateway is not None else None


def jvm_exit_code(timeout_s: float) -> int | None:
    """The exit code of this process's JVM, if it ends by itself within `timeout_s`; None: it runs, or there is none."""
    proc = _jvm()
    if proc is None:
        return None
    try:
        return int(proc.wait(timeout_s))
    except TimeoutExpired:
        return None


def end_session(timeout_s: float) -> None:
    """Ends the JVM of this process, if it has one. Kills it after `timeout_s`. Returns when it has ended.

    Otherwise the JVM would outlive this process for a moment, and could write a snapshot into a checkpoint that another
    driver has taken over.
    """
    proc = _jvm()
    if proc is None:
        return
    # its shutdown hooks delete its temporary files
    proc.terminate()
    try:
        proc.wait(timeout_s)
    except TimeoutExpired:
        proc.kill()
        proc.wait()


def _prepare_workers(spark: SparkSession) -> None:
    """Makes each Python process that Spark starts run our `sitecustomize` first."""
    context = spark.sparkContext
    given = (entry for entry in context.environment.get("PYTHONPATH", "").split(os.pathsep) if entry)
    context.environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(WORKERS), *given]))
    if context._jsc.sc().isLocal():
        context.environment[INSTALLED] = "1"


def send_code(spark: SparkSession, path: Path, digest: str, of: str) -> None:
    """Makes each Python process that Spark starts import the frozen code of `path` through the guard.

    They learn of it from their environment: the process that asks an app's StatefulProcessor for its state variables gets
    no files. Executors on other hosts are sent the zip as a plain file. As code, Spark would put it on Python's path, where
    it could be imported unchecked. `of`: the release, for messages.
    """
    context = spark.sparkContext
    context.environment.update(environment_for(path, digest, of))
    if not context._jsc.sc().isLocal():
        context.addFile(str(path))


def spark_kafka_options(settings: Settings) -> dict[str, str]:
    """Options for Spark's Kafka source, under the names of Kafka's Java client.

    If Spark runs on this machine only, they hold no secrets (`login.by_reference`). Executors on other hosts need the
    secrets themselves. Raises BadUsage for a login that this client can't use, see `login.java_properties`.
    """
    login = java_properties(settings)
    if (settings.spark_master or "local").startswith("local"):
        login = by_reference(login)
    # also for Spark's admin client, which by default waits 60 s for the answer of a broker that has stopped
    request_ms = int(settings.request_timeout_s * 1000)
    waits = {"request.timeout.ms": str(request_ms), "default.api.timeout.ms": str(2 * request_ms)}
    options = {"bootstrap.servers": settings.bootstrap, "isolation.level": "read_committed", **_FETCH, **waits}
    return {f"kafka.{name}": value for name, value in {**options, **login}.items()}


# After each poll, Spark asks the broker for both ends of a partition, and that request queues after the next fetch.
# With Kafka's defaults, a task would wait 500 ms for records that are not its own, and after every 500 records. The
# size of a poll is limited by max.partition.fetch.bytes, 1 MiB
_FETCH = {"fetch.max.wait.ms": "5", "max.poll.records": "50000"}
