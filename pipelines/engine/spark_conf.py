"""Spark's properties for a driver or a job, with limited memory, and Spark's Kafka options from the settings."""

from __future__ import annotations

from pathlib import Path

from pipelines.engine import origins
from pipelines.engine.expressions import INTERPRETED
from pipelines.engine.jvm.jars import class_archive, mapping, pyspark_jars, spark_jars
from pipelines.kafka.login import by_reference, java_properties
from pipelines.private import UMASK
from pipelines.secrets import SPARK_REDACTION
from pipelines.settings import Settings

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.ReusingRocksDBStateStoreProvider"
_JVM = Path(__file__).parent / "jvm"
_LOGGING = {
    # the second file replaces the appender of the first
    "text": (_JVM / "log4j2.properties").as_uri(),
    "json": ",".join((_JVM / name).as_uri() for name in ("log4j2.properties", "log4j2-json.properties")),
}
_LOCAL_FILES = "io.switchyard.LocalFiles"
_EXTENSIONS = "spark.sql.extensions"
_PANES = "org.apache.spark.sql.switchyard.Panes"
_FILES = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
_STATE = "spark.sql.streaming.stateStore"
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# The optimizing compiler (C2) waits until a method has run 40 times as often as by default. Otherwise it takes a third of
# the CPU time of a starting driver. History is read no slower: code that runs for each record is compiled within two
# seconds. Defaults: `java -XX:+PrintFlagsFinal`, Java 17
_COMPILE_LATER = (
    "-XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=24000 "
    "-XX:Tier4CompileThreshold=600000 -XX:Tier4BackEdgeThreshold=1600000"
)
# G1 gives heap back when a driver has no input: after 30 s without a collection, it starts one. `jvm_heap` says how much. It
# reads history as fast as the parallel collector, which gives nothing back
_COLLECTOR = "-XX:+UseG1GC -XX:G1PeriodicGCInterval=30000"
# by default, the classes loaded at the start (over 21 MB) already cause a full garbage collection
_ROOM_FOR_CLASSES = "-XX:MetaspaceSize=256m"
# An executor that does not reach its driver ends after that many heartbeats of 10 s each. By default it holds the cores that
# the driver of another host needs, and may write into the old checkpoint folder, for ten minutes
_UNHEARD_BEATS = 6
# What a container of YARN needs besides the heap and RocksDB. YARN kills one that takes more, and counts a page that two
# processes share once for each. MiB for the rest of the JVM, as Spark reckons it (Metaspace, threads, buffers of the network)
_JVM_REST_MB = 384
# MiB for the Python workers of one core, and what they are forked from: pandas and Arrow, and the rows of a task
_WORKERS_MB = 512
# By default, YARN ends an application after a few lost containers, however long ago it lost the others
_FORGET_LOSSES = "1h"
# for settings that want results at once
_SHORTEST_POLL_MS = 200
# After each poll, Spark asks the broker for both ends of a partition, and that request queues after the next fetch.
# With Kafka's defaults, a task would wait 500 ms for records that are not its own, and after every 500 records. The
# size of a poll is limited by max.partition.fetch.bytes, 1 MiB
_FETCH = {"fetch.max.wait.ms": "5", "max.poll.records": "50000"}


def session_conf(
    settings: Settings,
    *,
    heap_mb: int | None = None,
    cores: int | None = None,
    brief: bool = False,
    few_rows: bool = False,
) -> dict[str, str]:
    """Spark properties by name. RocksDB takes memory besides the heap of the driver or of an executor, at most a quarter of
    the heap's size.

    `heap_mb`, `cores`: None: those of a driver. `brief`: the session ends within a minute. `few_rows`: its batches have
    some hundred rows at most, so Spark interprets an app's expressions and compiles none.
    """
    heap_mb, cores = heap_mb or settings.driver_heap_mb, cores or settings.driver_cores
    work = settings.state_dir / "spark"
    return {
        "spark.master": settings.spark_master or f"local[{cores}]",
        "spark.driver.memory": f"{heap_mb}m",
        "spark.driver.extraClassPath": _class_path(),
        "spark.python.daemon.module": "pipelines.engine.python_daemon",
        **(executors_conf(settings) if settings.executors_elsewhere else _LOOPBACK),
        "spark.local.dir": str(work),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        # Hadoop uses this mask, not that of the process
        "spark.hadoop.fs.permissions.umask-mode": f"{UMASK:03o}",
        **_java_conf(settings, work, brief=brief),
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
        **_state_conf(settings.executor_heap_mb if settings.executors_elsewhere else heap_mb),
        "spark.sql.streaming.pollingDelay": f"{_poll_ms(settings)}ms",
        # Spark gets paths without a scheme. A Hadoop configuration of this host may name another file system for them
        "spark.hadoop.fs.defaultFS": "file:///",
        # the default starts a process for each local file that it renames
        "spark.sql.streaming.checkpointFileManagerClass": _FILES,
        "spark.hadoop.fs.file.impl": _LOCAL_FILES,
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        # "false" leaves sliding windows as Spark plans them
        "spark.sql.switchyard.panes": "true",
        **(INTERPRETED if few_rows else {}),
        **settings.spark,
        # a deployment's own extensions come first
        _EXTENSIONS: ",".join(filter(None, (settings.spark.get(_EXTENSIONS), _PANES))),
    }


def _java_conf(settings: Settings, work: Path, *, brief: bool) -> dict[str, str]:
    """Options of the driver's JVM, in two properties, so that a setting can replace one and keep the other."""
    # in a trial of some seconds the optimizing compiler costs more than it gains
    compiler = (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" if brief else f"{_COLLECTOR} {_COMPILE_LATER} {_ROOM_FOR_CLASSES}"
    )
    logging = f"-Dlog4j2.configurationFile={_LOGGING[settings.log_format]}"
    return {
        "spark.driver.defaultJavaOptions": compiler,
        "spark.driver.extraJavaOptions": " ".join([f"-Djava.io.tmpdir={work}", logging, *mapping(class_archive())]),
    }


def _poll_ms(settings: Settings) -> int:
    """How long Spark waits, in milliseconds, before it asks for new records again. Each time, it sends the broker four requests."""
    return max(_SHORTEST_POLL_MS, round(settings.trigger_s * 1000 / 2))


def _ui_conf(port: int) -> dict[str, str]:
    """`port`: of Spark's UI; 0: there is none."""
    return {
        "spark.ui.enabled": str(port > 0).lower(),
        **({"spark.ui.port": str(port), "spark.ui.prometheus.enabled": "true"} if port else {}),
        # any page in a browser on this machine could end a batch by a link
        "spark.ui.killEnabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _class_path() -> str:
    """The jars on the class path, where the JVM finds archived classes, and finds our trait before Spark's of that name.

    Executors have them at the same path. Sent by Spark, they would come after Spark's own, and have another class loader.
    """
    return ":".join(map(str, spark_jars()))


def executors_conf(settings: Settings) -> dict[str, str]:
    """What executors on other hosts get, and where they find the driver."""
    host = settings.driver_host or settings.host
    return {
        "spark.driver.host": host,
        "spark.driver.bindAddress": settings.driver_bind_address or host,
        # a standalone cluster counts cores, not executors
        "spark.cores.max": str(settings.executors * settings.executor_cores),
        "spark.executor.cores": str(settings.executor_cores),
        "spark.executor.memory": f"{settings.executor_heap_mb}m",
        "spark.executor.extraClassPath": _class_path(),
        "spark.executor.defaultJavaOptions": "-XX:+UseParallelGC",
        "spark.executor.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING[settings.log_format]}",
        "spark.executor.heartbeat.maxFailures": str(_UNHEARD_BEATS),
        **(_yarn_conf(settings) if settings.on_yarn else {}),
    }


def _yarn_conf(settings: Settings) -> dict[str, str]:
    """What YARN's containers get. Each host has the same installation at the same path, so Spark uploads neither its jars nor
    its Python modules at each start.
    """
    heap_mb = settings.executor_heap_mb
    besides_mb = _rocksdb_mb(heap_mb) + _JVM_REST_MB + _WORKERS_MB * settings.executor_cores
    return {
        "spark.executor.instances": str(settings.executors),
        "spark.executor.memoryOverhead": f"{besides_mb}m",
        "spark.yarn.jars": f"local:{pyspark_jars()}/*",
        # workers find PySpark where the driver does, in the environment of their Python
        "spark.yarn.isPython": "false",
        # for Spark's properties, which hosts of executors have to read. The default is the user's home on this host
        "spark.yarn.stagingDir": settings.yarn_staging_dir.as_uri(),
        # the preflight waits for executors, and says why none comes; Spark would wait 30 s before that, and say nothing
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        "spark.executor.failuresValidityInterval": _FORGET_LOSSES,
        "spark.yarn.am.attemptFailuresValidityInterval": _FORGET_LOSSES,
    }


def _rocksdb_mb(heap_mb: int) -> int:
    """How much memory RocksDB takes besides a heap of that size, in MiB."""
    return max(64, heap_mb // 4)


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
        f"{_STATE}.rocksdb.maxMemoryUsageMB": str(_rocksdb_mb(heap_mb)),
    }


def kafka_properties(settings: Settings) -> dict[str, str]:
    """Properties of each client of Kafka in Spark's JVM: where the cluster is, the login, and how long to wait.

    If Spark runs on this machine only, they hold no secrets (`login.by_reference`). Executors on other hosts need the
    secrets themselves. Raises BadUsage for a login that this client can't use, see `login.java_properties`.
    """
    login = java_properties(settings)
    if not settings.executors_elsewhere:
        login = by_reference(login)
    # also for Spark's admin client, which by default waits 60 s for the answer of a broker that has stopped
    request_ms = int(settings.request_timeout_s * 1000)
    waits = {"request.timeout.ms": str(request_ms)}
    return {"bootstrap.servers": settings.bootstrap, **waits, **login}


def spark_kafka_options(settings: Settings) -> dict[str, str]:
    """Options for Spark's Kafka source, under the names of Kafka's Java client. Raises BadUsage as `kafka_properties` does."""
    properties = kafka_properties(settings)
    options = {
        **properties,
        "isolation.level": "read_committed",
        # with a broker's default settings, its consumers would create a deleted input again
        "allow.auto.create.topics": "false",
        "default.api.timeout.ms": str(2 * int(properties["request.timeout.ms"])),
        **_FETCH,
    }
    return {f"kafka.{name}": value for name, value in options.items()}
