"""The Spark session of a driver or a job, with its memory bounded, and Spark's Kafka options from the settings."""

from __future__ import annotations

import logging
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from pipelines.engine.guard import WORKERS, environment_for
from pipelines.engine.jvm.jars import class_archive, spark_jars
from pipelines.kafka.login import by_reference, java_properties
from pipelines.private import UMASK, private
from pipelines.secrets import SPARK_REDACTION, is_secret, withheld
from pipelines.settings import Settings

log = logging.getLogger("switchyard.driver")

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.ReusingRocksDBStateStoreProvider"
_JVM = Path(__file__).parent / "jvm"
_LOGGING = {
    # the second replaces the appender of the first
    "text": (_JVM / "log4j2.properties").as_uri(),
    "json": ",".join((_JVM / name).as_uri() for name in ("log4j2.properties", "log4j2-json.properties")),
}
_LOCAL_FILES = "io.switchyard.LocalFiles"
_FILES = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
_STATE = "spark.sql.streaming.stateStore"
# The optimizing compiler (C2) waits until a method has run ten times as often as by default. Otherwise it takes 40 % of the
# processor time of a starting driver. History is read as fast: what runs for each record is compiled within a second
# either way. Defaults: `java -XX:+PrintFlagsFinal`, Java 17
_COMPILE_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
# by default the classes of a start alone, over 21 MB, cause a full collection of the heap
_ROOM_FOR_CLASSES = "-XX:MetaspaceSize=256m"


def session_conf(settings: Settings, *, heap_mb: int, cores: int, brief: bool = False) -> dict[str, str]:
    """Spark properties by name. RocksDB's memory comes on top of the heap, at most a quarter of it."""
    ui, master, jars = settings.spark_ui_port, settings.spark_master or f"local[{cores}]", spark_jars()
    # a trial of some seconds never earns back what the optimising compiler costs
    compiler = (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        if brief
        else f"-XX:+UseParallelGC {_COMPILE_LATER} {_ROOM_FOR_CLASSES}"
    )
    work = settings.state_dir / "spark"
    return {
        "spark.master": master,
        "spark.driver.memory": f"{heap_mb}m",
        # on the class path: only from there are classes mapped from the archive; executors elsewhere must be sent them
        **(
            {"spark.driver.extraClassPath": ":".join(map(str, jars))}
            if master.startswith("local")
            else {"spark.jars": ",".join(map(str, jars))}
        ),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(work),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        # Hadoop goes by its own mask, not by that of the process
        "spark.hadoop.fs.permissions.umask-mode": f"{UMASK:03o}",
        # two properties, so that a setting can replace one and keep the other
        "spark.driver.defaultJavaOptions": compiler,
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={work} -Dlog4j2.configurationFile={_LOGGING[settings.log_format]} {_archived()}",
        "spark.ui.enabled": str(ui > 0).lower(),
        **({"spark.ui.port": str(ui), "spark.ui.prometheus.enabled": "true"} if ui else {}),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        # two copies of one task would both write
        "spark.speculation": "false",
        "spark.redaction.regex": SPARK_REDACTION,
        "spark.sql.redaction.options.regex": f"{SPARK_REDACTION}|url",
        "spark.sql.streaming.metricsEnabled": "true",
        "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "false",
        "spark.sql.streaming.minBatchesToRetain": "20",
        f"{_STATE}.providerClass": _ROCKSDB,
        f"{_STATE}.checkpointFormatVersion": "1",
        f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
        # a killed driver's successor replays what came since: 60 s of it by default
        f"{_STATE}.maintenanceInterval": "15s",
        # looks each key up, just to count rows
        f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",
        # where there is nothing to read: each look asks the broker
        "spark.sql.streaming.pollingDelay": "200ms",
        # the default one starts a process for each local file that it renames
        "spark.sql.streaming.checkpointFileManagerClass": _FILES,
        "spark.hadoop.fs.file.impl": _LOCAL_FILES,
        f"{_STATE}.rocksdb.boundedMemoryUsage": "true",
        f"{_STATE}.rocksdb.maxMemoryUsageMB": str(max(64, heap_mb // 4)),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        **settings.spark,
    }


def _archived() -> str:
    """Options that map Spark's classes. Where the archive is of another Java or other jars, Java does without, unheard."""
    path = class_archive()
    return f"-XX:SharedArchiveFile={path} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off" if path.is_file() else ""


def build_session(
    settings: Settings, name: str, *, heap_mb: int | None = None, cores: int | None = None, brief: bool = False
) -> SparkSession:
    """A session of this process; the one there is, in the JVM that it has, if there is one."""
    builder = SparkSession.builder.appName(name)
    conf = session_conf(
        settings, heap_mb=heap_mb or settings.driver_heap_mb, cores=cores or settings.driver_cores, brief=brief
    )
    for key, value in conf.items():
        builder = builder.config(key, value)

    def started() -> SparkSession:
        _need_jvm(settings, conf)
        return builder.getOrCreate()

    with ThreadPoolExecutor(1, "spark") as pool:
        return pool.submit(started).result()


def begin_jvm(settings: Settings) -> None:
    """Starts the JVM of a driver's session while this process does other things. `build_session` waits for it."""
    conf = session_conf(settings, heap_mb=settings.driver_heap_mb, cores=settings.driver_cores)

    def started() -> None:
        try:
            _need_jvm(settings, conf)
        except Exception as error:
            # who needs it tries again, and says what is wrong
            log.info("the JVM did not start early: %s", error)

    threading.Thread(target=started, name="spark", daemon=True).start()


_starting = threading.Lock()


def _need_jvm(settings: Settings, conf: dict[str, str]) -> None:
    """Starts the JVM of this process, unless it has one. To be called on a thread of its own, which gets its priority."""
    (private(settings.state_dir) / "spark").mkdir(exist_ok=True)
    # workers must run the interpreter that the driver runs
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # of this thread alone, which the JVM inherits
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(settings.driver_nice, os.getpriority(os.PRIO_PROCESS, thread)))
    with _starting:
        if SparkContext._gateway is None:
            _yield_session(_start_jvm(conf, settings.driver_environment), settings.driver_nice)


def _start_jvm(conf: dict[str, str], environment: tuple[str, ...]) -> int:
    """Starts the JVM of this process; the leader of the session that it is in.

    What is secret is not on its command line, which any user sees, but set once it runs. Neither it nor the Python workers
    that it starts get a secret by their environment. A driver leads its session; elsewhere the JVM gets one of its own. It
    still ends with us.
    """
    leads = os.getsid(0) == os.getpid()
    shown = [(name, value) for name, value in conf.items() if not is_secret(name)]
    with withheld(environment):
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            SparkConf(loadDefaults=False).setAll(shown), {"start_new_session": not leads}
        )
    SparkContext._ensure_initialized(gateway=gateway)
    return os.getpid() if leads or gateway.proc is None else int(gateway.proc.pid)


def _yield_session(pid: int, nice: int) -> None:
    """Has what runs in other sessions preferred to that of `pid`, where Linux groups processes by session.

    There a thread's own nice value counts within its session alone (autogroups, sched(7)). That of an operator's shell is
    not ours to slow down.
    """
    # without autogroups there is nobody to tell
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def _jvm() -> Popen[bytes] | None:
    """The process that this one has started Spark in; None: there is none."""
    return SparkContext._gateway.proc if SparkContext._gateway is not None else None


def jvm_exit_code(timeout_s: float) -> int | None:
    """The code with which the JVM of this process has ended by itself, within `timeout_s`; None: it runs, or there is none."""
    proc = _jvm()
    if proc is None:
        return None
    try:
        return int(proc.wait(timeout_s))
    except TimeoutExpired:
        return None


def end_session(timeout_s: float) -> None:
    """Ends the JVM of this process, if it has one, and returns when it is gone: killed, if it takes longer than `timeout_s`.

    Left to itself it outlives this process by a moment, and may upload a snapshot into a checkpoint that is another's by then.
    """
    proc = _jvm()
    if proc is None:
        return
    # by its own hooks, which delete what it has in the temporary folders
    proc.terminate()
    try:
        proc.wait(timeout_s)
    except TimeoutExpired:
        proc.kill()
        proc.wait()


def send_code(spark: SparkSession, path: Path, digest: str, of: str) -> None:
    """Has every Python process that Spark starts import the frozen code of `path` by the guard, if it has that digest.

    By the environment, which also the process gets by which Spark asks an app's StatefulProcessor for its state
    variables; that one gets no files. Executors elsewhere are sent the file, as a file: on Python's path, where Spark
    puts what it knows as code, all in it could be imported unchecked. `of`: the release, for messages.
    """
    context = spark.sparkContext
    given = (entry for entry in context.environment.get("PYTHONPATH", "").split(os.pathsep) if entry)
    context.environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(WORKERS), *given]))
    context.environment.update(environment_for(path, digest, of))
    if not context._jsc.sc().isLocal():
        context.addFile(str(path))


def spark_kafka_options(settings: Settings) -> dict[str, str]:
    """Options for Spark's Kafka source, which speaks by the names of Kafka's Java client.

    No secret is among them where Spark runs on this machine alone: `login.by_reference`. Executors elsewhere need them as
    they are. Raises BadUsage for a login that this client can't take, see `login.java_properties`.
    """
    login = java_properties(settings)
    if (settings.spark_master or "local").startswith("local"):
        login = by_reference(login)
    # Spark hands them to its admin client, too, which by default waits 60 s for an answer that a broker has taken with it
    request_ms = int(settings.request_timeout_s * 1000)
    waits = {"request.timeout.ms": str(request_ms), "default.api.timeout.ms": str(2 * request_ms)}
    options = {"bootstrap.servers": settings.bootstrap, "isolation.level": "read_committed", **_FETCH, **waits}
    return {f"kafka.{name}": value for name, value in {**options, **login}.items()}


# Spark asks the broker for both ends of a partition after each fetch, behind the next fetch, which is on its way: with
# Kafka's 500 ms a task waits as long for records that are not its own, and with 500 records of a poll it waits often.
# What a poll holds is bounded by max.partition.fetch.bytes, 1 MiB
_FETCH = {"fetch.max.wait.ms": "5", "max.poll.records": "50000"}
