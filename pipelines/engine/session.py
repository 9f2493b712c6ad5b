"""The Spark session of a driver or a job, in this process's JVM, and what its Python workers get."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from pipelines.engine import origins
from pipelines.engine.guard import INSTALLATION, INSTALLED, STATE_SECRET, WORKERS, environment_for
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.jvm_process import need_jvm
from pipelines.engine.spark_conf import session_conf
from pipelines.settings import Settings

_STATE_SOCKET = "org.apache.spark.sql.execution.python.streaming.LocalStateSocket"


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
    conf = session_conf(settings, heap_mb=heap_mb, cores=cores, brief=brief, few_rows=few_rows)
    for key, value in conf.items():
        builder = builder.config(key, value)

    def started() -> SparkSession:
        need_jvm(settings, conf)
        secret = java_class(_STATE_SOCKET).secret()
        # the JVMs of executors learn it from their environment, as workers do
        more = {f"spark.executorEnv.{STATE_SECRET}": secret} if settings.executors_elsewhere else {}
        SparkContext.getOrCreate(SparkConf().setAll([*conf.items(), *more.items()]).setAppName(name))
        with _late_functions():
            spark = builder.getOrCreate()
        _prepare_workers(spark, secret)
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


def _prepare_workers(spark: SparkSession, secret: str) -> None:
    """Makes each Python process that Spark starts run our `sitecustomize` first, and tells it what opens an app's state.

    Executors have the same installation at the same path, but not the PYTHONPATH of this process.
    """
    context = spark.sparkContext
    given = [entry for entry in context.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    more = [] if context._jsc.sc().isLocal() else [str(INSTALLATION)]
    context.environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(WORKERS), *given, *more]))
    context.environment[INSTALLED] = "1"
    context.environment[STATE_SECRET] = secret


def send_code(spark: SparkSession, path: Path, digest: str, of: str) -> None:
    """Makes each Python process that Spark starts import the frozen code of `path` through the guard.

    They learn of it from their environment, and read the zip in the store. Spark sends no file: the process that asks an
    app's StatefulProcessor for its state variables would not get it. Sent as code, it would be on Python's path, where it
    could be imported unchecked. `of`: the release, for messages.
    """
    spark.sparkContext.environment.update(environment_for(path, digest, of))
