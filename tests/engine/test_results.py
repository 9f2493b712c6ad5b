"""The rows of an app with several results become records of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.engine.results import serialized
from pipelines.model import AppendStream, AppSettings, Stream, Table, Text, app
from tests.shared.session import COMPILED, configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@app(
    name="odd-and-all",
    inputs={"numbers": Stream(topic="numbers", value=Text("text"))},
    results={"odd": AppendStream(key=("number",)), "all": Table(key=("number",))},
)
def both(numbers: DataFrame, settings: AppSettings) -> DataFrame:
    number = F.struct("number", "half")
    return numbers.select(F.when(F.col("number") % 2 == 1, number).alias("odd"), number.alias("all"))


def records(spark: SparkSession) -> DataFrame:
    # not a literal table, which Spark would evaluate while it plans
    numbers = spark.range(0, 4, 1, 1).select(F.col("id").alias("number"), (F.col("id") / 2).alias("half"))
    return serialized(both, both.function(numbers=numbers, settings=AppSettings({})))


def test_a_row_gives_a_record_of_each_result_that_it_is_of(spark: SparkSession) -> None:
    found = [(each.result, each.key, each.value) for each in records(spark).collect()]
    assert found == [
        ("all", '{"number":0}', '{"half":0.0}'),
        ("odd", '{"number":1}', '{"half":0.5}'),
        ("all", '{"number":1}', '{"half":0.5}'),
        ("all", '{"number":2}', '{"half":1.0}'),
        ("odd", '{"number":3}', '{"half":1.5}'),
        ("all", '{"number":3}', '{"half":1.5}'),
    ]


def test_records_of_large_batches_are_made_by_compiled_code(spark: SparkSession) -> None:
    with configured(spark, COMPILED):
        plan = records(spark)._jdf.queryExecution().executedPlan().toString()
    # Spark marks what it compiles by a star
    assert all(line.lstrip("+- ").startswith("*") for line in plan.splitlines() if line.strip()), plan
