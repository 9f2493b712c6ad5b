"""Our own classes for Spark.

An aggregation continues from its loaded state, an ended query writes nothing, and a file's permissions take no process.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration.jvm.scala import compile_to
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.jvm.jars import SCALA_SOURCES, scala_jar, spark_jars
from pipelines.engine.spark_conf import session_conf
from pipelines.errors import SwitchyardError
from pipelines.settings import Settings
from tests.shared.session import configured
from tests.shared.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARKS_OWN = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STORES = "org.apache.spark.sql.execution.streaming.state.StateStore$"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture(params=[pytest.param(False, id="ours"), pytest.param(True, id="spark's")])
def sparks_own(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[bool]:
    """Whether the session uses Spark's own state store; if not, that of drivers."""
    before = spark.conf.get(PROVIDER) or SPARKS_OWN
    drivers = session_conf(Settings(), heap_mb=1024, cores=2)[PROVIDER]
    assert drivers != SPARKS_OWN
    spark.conf.set(PROVIDER, SPARKS_OWN if request.param else drivers)
    yield request.param
    spark.conf.set(PROVIDER, before)


def maintain() -> None:
    """Has Spark maintain every loaded state now, as it does every 15 s, in threads of its own."""
    stores = getattr(java_class(STORES), "MODULE$")
    maintenance = stores.getClass().getDeclaredMethod("doMaintenance", None)
    maintenance.setAccessible(True)
    maintenance.invoke(stores, None)


def await_batches(checkpoint: Path, more: int) -> None:
    """Waits until so many more batches have ended."""

    def ended() -> int:
        return max((int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")), default=-1)

    before = ended()
    until(f"{more} more batches have not ended", lambda: ended() >= before + more, timeout_s=60)


def is_loaded(checkpoint: Path) -> bool:
    """Whether Spark holds a state of `checkpoint`. Maintenance unloads those of an ended query at its end."""
    stores = getattr(java_class(STORES), "MODULE$")
    loaded = stores.getClass().getDeclaredField("loadedProviders")
    loaded.setAccessible(True)
    return str(checkpoint) in loaded.get(stores).keySet().toString()


@pytest.mark.spark
def test_a_batch_goes_on_from_the_state_that_the_last_one_left_loaded(
    spark: SparkSession, tmp_path: Path, sparks_own: bool
) -> None:
    words, checkpoint = tmp_path / "words", tmp_path / "checkpoint"
    words.mkdir()
    counts: dict[str, int] = {}

    def keep(rows: DataFrame, _: int) -> None:
        counts.update({row.value: row["count"] for row in rows.collect()})

    query = (
        spark.readStream.text(str(words))
        .groupBy("value")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        (words / "1").write_text("a\na\nb\n")
        query.processAllAvailable()
        assert counts == {"a": 2, "b": 1}
        # a store that loads the state now finds none
        for file in (checkpoint / "state").glob("*/*/*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        (words / "2").write_text("a\nc\n")
        if sparks_own:
            # SPARK-51955: once this no longer fails, our own class need not reuse what is loaded
            with pytest.raises(Exception, match="CANNOT_LOAD_STATE_STORE"):
                query.processAllAvailable()
        else:
            query.processAllAvailable()
            assert counts == {"a": 3, "b": 1, "c": 1}
    finally:
        query.stop()


@pytest.mark.spark
def test_a_query_that_has_ended_writes_nothing_more_to_its_checkpoint(
    spark: SparkSession, tmp_path: Path, sparks_own: bool
) -> None:
    checkpoint = tmp_path / "checkpoint"
    with configured(spark, {"spark.sql.streaming.stateStore.minDeltasForSnapshot": "1"}):
        query = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", 1)
            .load()
            .groupBy("value")
            .count()
            .writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        try:
            await_batches(checkpoint, 2)
            maintain()
            until("no snapshot was written", lambda: list((checkpoint / "state").glob("*/*/*.zip")), timeout_s=60)
            await_batches(checkpoint, 2)
            assert is_loaded(checkpoint)
        finally:
            query.stop()
    shutil.rmtree(checkpoint)
    maintain()
    until("the state of an ended query is still loaded", lambda: not is_loaded(checkpoint), timeout_s=60)
    # once Spark's own class writes nothing either, ours need not ask
    assert checkpoint.exists() == sparks_own


@pytest.mark.spark
def test_a_source_that_is_wrong_leaves_no_jar_and_says_what_the_compiler_says(tmp_path: Path) -> None:
    source, jar = tmp_path / "Wrong.scala", tmp_path / "jars" / "wrong.jar"
    source.write_text("class Wrong extends Nothing_at_all\n")
    with pytest.raises(SwitchyardError, match="not found: type Nothing_at_all"):
        compile_to(jar, [source])
    assert list(jar.parent.iterdir()) == []


@pytest.mark.spark
def test_a_file_gets_its_permissions_without_a_process(spark: SparkSession, tmp_path: Path) -> None:
    assert spark._jvm is not None
    hadoop = spark._jvm.org.apache.hadoop.fs
    # the way a checkpoint's files are created
    path = hadoop.Path((tmp_path / "state" / "1.delta").as_uri())
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    files.create(path, True).close()
    assert (tmp_path / "state" / "1.delta").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    permissions = hadoop.permission.FsPermission("640")
    files.setPermission(path, permissions)
    assert (tmp_path / "state" / "1.delta").stat().st_mode & 0o777 == 0o640
    # `chmod` would report this in its own words
    with pytest.raises(Exception, match=r"java\.nio\.file\.NoSuchFileException"):
        files.setPermission(hadoop.Path((tmp_path / "nothing").as_uri()), permissions)


def test_the_installation_has_the_classes_compiled_of_these_very_sources() -> None:
    assert scala_jar() in spark_jars()


def test_a_jar_of_another_source_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, (first, *others) = scala_jar(), SCALA_SOURCES
    other = tmp_path / first.name
    other.write_text(first.read_text() + "\n")
    monkeypatch.setattr("pipelines.engine.jvm.jars.SCALA_SOURCES", (other, *others))
    assert scala_jar() != mine
    with pytest.raises(SwitchyardError, match=r"not compiled") as caught:
        spark_jars()
    assert "make setup" in caught.value.fix
