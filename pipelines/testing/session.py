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
    from pipelines.engine.session import build_session, end_session

    with tempfile.TemporaryDirectory(prefix="switchyard-") as folder:
        settings = Settings(state_dir=Path(folder))
        spark = build_session(settings, "tests of apps", heap_mb=heap_mb, cores=cores, brief=True, few_rows=True)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()
            end_session(settings.jvm_end_timeout_s)
