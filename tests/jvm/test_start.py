"""What makes a driver start faster: functions are made when an app uses one, and a state's description is read early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.engine.jvm.classes import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


def registered() -> Any:
    """Spark's registry of internal functions."""
    return getattr(java_class("org.apache.spark.sql.catalyst.analysis.FunctionRegistry$"), "MODULE$").internal()


def makers(spark: SparkSession) -> dict[str, str]:
    """Function -> the class that makes it, of those that are late."""
    jvm = spark._jvm
    assert jvm is not None
    names = java_class("org.apache.spark.sql.switchyard.LateFunctions").names()
    found = {}
    for number in range(names.size()):
        identifier = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(names.apply(number))
        found[names.apply(number)] = registered().lookupFunctionBuilder(identifier).get().getClass().getName()
    return found


def test_they_work_and_are_all_there(spark: SparkSession) -> None:
    from pyspark.ml.functions import array_to_vector, vector_to_array
    from pyspark.sql import functions as F

    assert all("LateFunctions" in maker for maker in makers(spark).values())
    known = registered().listFunction().size()
    rows = spark.createDataFrame([([1.5, 2.0],)], "numbers array<double>")
    found = rows.select(vector_to_array(array_to_vector(F.col("numbers"))).alias("same")).collect()
    assert [row.same for row in found] == [[1.5, 2.0]]
    # Spark has made all that it has, and none that was not promised
    assert not any("LateFunctions" in maker for maker in makers(spark).values())
    assert registered().listFunction().size() == known


def test_other_extensions_of_a_session_are_found() -> None:
    functions = java_class("org.apache.spark.sql.switchyard.LateFunctions")
    thread = java_class("java.lang.Thread")
    before = thread.currentThread().getContextClassLoader()
    service = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
    extensions = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider"

    def found(name: str) -> int:
        urls, number = thread.currentThread().getContextClassLoader().getResources(name), 0
        while urls.hasMoreElements():
            urls.nextElement()
            number += 1
        return number

    assert found(extensions) == 1
    sources = found(service)
    functions.enter()
    try:
        assert found(extensions) == 0
        assert found(service) == sources > 1
    finally:
        functions.exit()
    assert thread.currentThread().getContextClassLoader().equals(before)


def test_a_state_s_description_can_be_read_early(spark: SparkSession) -> None:
    early = java_class("org.apache.spark.sql.execution.streaming.state.EarlyReading")
    assert early.read() == 3
    early.begin()
