"""The state store of this project's own: an aggregation goes on from the state that it has loaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration.local.state_store import compile_to
from pipelines.engine.jars import STATE_STORE_SOURCE, spark_jars, state_store_jar
from pipelines.engine.session import session_conf
from pipelines.errors import SwitchyardError
from pipelines.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARKS_OWN = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture(params=[pytest.param(False, id="ours"), pytest.param(True, id="spark's")])
def sparks_own(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[bool]:
    """Whether the session's state store is Spark's own; else it is a driver's."""
    before = spark.conf.get(PROVIDER) or SPARKS_OWN
    drivers = session_conf(Settings(), heap_mb=1024, cores=2)[PROVIDER]
    assert drivers != SPARKS_OWN
    spark.conf.set(PROVIDER, SPARKS_OWN if request.param else drivers)
    yield request.param
    spark.conf.set(PROVIDER, before)


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
        # whoever loads the state now finds none
        for file in (checkpoint / "state").glob("*/*/*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        (words / "2").write_text("a\nc\n")
        if sparks_own:
            # SPARK-51955: once this no longer fails, our own needs no content any more
            with pytest.raises(Exception, match="CANNOT_LOAD_STATE_STORE"):
                query.processAllAvailable()
        else:
            query.processAllAvailable()
            assert counts == {"a": 3, "b": 1, "c": 1}
    finally:
        query.stop()


@pytest.mark.spark
def test_a_source_that_is_wrong_leaves_no_jar_and_says_what_the_compiler_says(tmp_path: Path) -> None:
    source, jar = tmp_path / "Wrong.scala", tmp_path / "jars" / "wrong.jar"
    source.write_text("class Wrong extends Nothing_at_all\n")
    with pytest.raises(SwitchyardError, match="not found: type Nothing_at_all"):
        compile_to(jar, source)
    assert list(jar.parent.iterdir()) == []


def test_the_installation_has_the_store_compiled_of_this_very_source() -> None:
    assert state_store_jar() in spark_jars()


def test_a_jar_of_another_source_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = state_store_jar()
    other = tmp_path / STATE_STORE_SOURCE.name
    other.write_text(STATE_STORE_SOURCE.read_text() + "\n")
    monkeypatch.setattr("pipelines.engine.jars.STATE_STORE_SOURCE", other)
    assert state_store_jar() != mine
    with pytest.raises(SwitchyardError, match=r"not compiled") as caught:
        spark_jars()
    assert "make setup" in caught.value.fix
