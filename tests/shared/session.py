"""The Spark session that many drivers, checks and trials share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# most code here runs once, so the optimizing compiler costs more than it gains, and so does Spark's (drivers that are
# processes have both). Many drivers share this session, so it has more code and garbage than one driver
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"

# Spark compiles expressions, and fails where it can't; otherwise it would interpret there
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}


@contextmanager
def configured(spark: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
    """While the block runs, the session has these properties."""
    before = {name: str(spark.conf.get(name)) for name in properties}
    for name, value in properties.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def active_in(spark: SparkSession) -> set[str]:
    """The ids of the queries that run in a session."""
    return {str(query.id) for query in spark.streams.active}


def shared_session(folder: Path, *, heap_mb: int, young_mb: int) -> SparkSession:
    """A session with at most `heap_mb` MiB of heap, of which `young_mb` are for what is new."""
    from pipelines.engine.session import build_session

    java = f"{_JAVA} -Xms{2 * young_mb}m -Xmn{young_mb}m"
    # with its state in one partition, a batch takes an eighth less CPU time; drivers that are processes have two.
    # Tests wait for each batch, so drivers ask for new records twice in 0.4 s
    settings = Settings(
        state_dir=folder, shuffle_partitions=1, trigger_s=0.4, spark={"spark.driver.defaultJavaOptions": java}
    )
    session = build_session(settings, "tests", heap_mb=heap_mb, few_rows=True)
    session.sparkContext.setLogLevel("ERROR")
    return session
