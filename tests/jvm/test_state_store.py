"""Our own classes for Spark.

An aggregation continues from its loaded state, a deleted checkpoint stays deleted, and a file's permissions take no
process.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestration.jvm.scala import compile_to
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.jvm.jars import SCALA_SOURCES, scala_jar, spark_jars
from pipelines.engine.spark_conf import session_conf
from pipelines.errors import SwitchyardError
from pipelines.settings import Settings
from tests.shared.session import configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

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


def private(field: str) -> Any:
    """The value of a private field of Spark's `StateStore`."""
    stores = getattr(java_class(STORES), "MODULE$")
    found = stores.getClass().getDeclaredField(field)
    found.setAccessible(True)
    return found.get(stores)


@contextmanager
def loaded(checkpoint: Path) -> Iterator[list[Any]]:
    """The loaded stores of a checkpoint. While the block runs, Spark doesn't maintain them by itself."""
    pairs = private("loadedProviders").iterator()
    found: dict[Any, Any] = {}
    while pairs.hasNext():
        pair = pairs.next()
        if str(checkpoint) in pair._1().toString():
            found[pair._1()] = pair._2()
    maintained = private("maintenancePartitions")
    for each in found:
        maintained.add(each)
    try:
        yield [*found.values()]
    finally:
        for each in found:
            maintained.remove(each)


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
        put(words / "1", "a\na\nb\n")
        query.processAllAvailable()
        assert counts == {"a": 2, "b": 1}
        # a store that loads the state now finds none
        for file in (checkpoint / "state").glob("*/*/*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        put(words / "2", "a\nc\n")
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
def test_maintenance_does_not_create_a_deleted_checkpoint_again(
    spark: SparkSession, tmp_path: Path, sparks_own: bool
) -> None:
    words, checkpoint = tmp_path / "words", tmp_path / "checkpoint"
    words.mkdir()
    with configured(spark, {"spark.sql.streaming.stateStore.minDeltasForSnapshot": "1"}):
        query = (
            spark.readStream.text(str(words))
            .groupBy("value")
            .count()
            .writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        try:
            read(query, words / "1")
            with loaded(checkpoint) as stores:
                read(query, words / "2")
                for store in stores:
                    store.doMaintenance()
                # otherwise, it would have nothing to write below
                assert [*(checkpoint / "state").glob("*/*/*.zip")]
                read(query, words / "3")
                shutil.rmtree(checkpoint)
                for store in stores:
                    store.doMaintenance()
                # once Spark's own class writes nothing either, ours need not look
                assert checkpoint.exists() == sparks_own
        finally:
            query.stop()


def read(query: StreamingQuery, file: Path) -> None:
    """Has a query process a new file of one word."""
    put(file, "a\n")
    query.processAllAvailable()


def put(file: Path, text: str) -> None:
    """Puts a whole file into a folder that a query watches. It could read one that is still being written."""
    aside = file.parent.with_name(f"{file.name}.unfinished")
    aside.write_text(text)
    aside.rename(file)


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
    assert "`switchyard jars`" in caught.value.fix
