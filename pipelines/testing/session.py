"""A Spark session for tests of apps: set up as a driver's, but small, and quick to start."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session(*, heap_mb: int = 512, cores: int = 1) -> Iterator[SparkSession]:
    """Starts Spark, which takes some seconds; ends it after the block. Make it a fixture that all tests share."""
    from pipelines.engine.jvm_process import stop_jvm
    from pipelines.engine.session import build_session

    with tempfile.TemporaryDirectory(prefix="switchyard-") as folder:
        settings = Settings.apart(Path(folder))
        spark = build_session(settings, "tests of apps", heap_mb=heap_mb, cores=cores, brief=True, few_rows=True)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()
            stop_jvm(settings.jvm_end_timeout_s)


def unload_states() -> None:
    """Makes Spark unload every state that it holds in memory."""
    from pipelines.engine.jvm.classes import java_class

    stores = java_class("org.apache.spark.sql.execution.streaming.state.StateStore$")
    # not `stop`: it waits up to 300 s for a maintenance task that waits for the lock that `stop` holds
    getattr(stores, "MODULE$").unloadAll()
