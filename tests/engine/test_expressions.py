"""Spark interprets an app's expressions while batches are small, and compiles them for large ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.engine.expressions import INTERPRETED, MANY_RECORDS, Expressions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


@pytest.fixture
def own(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with properties of its own, as a query has; at first it compiles, as a driver's does."""
    session = spark.newSession()
    for name in INTERPRETED:
        session.conf.unset(name)
    yield session
    # newSession replaces what the next test finds active
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]


def compiles(spark: SparkSession) -> bool:
    return "WholeStageCodegen" in spark.range(3).selectExpr("id + 1")._jdf.queryExecution().executedPlan().toJSON()


def test_a_driver_with_much_to_read_compiles_until_it_has_caught_up(own: SparkSession) -> None:
    expressions = Expressions(own, MANY_RECORDS)
    assert compiles(own)
    for _ in range(29):
        expressions.after_batch(own, 10)
    expressions.after_batch(own, MANY_RECORDS)
    for _ in range(29):
        expressions.after_batch(own, 10)
    assert compiles(own)
    expressions.after_batch(own, 0)
    assert not compiles(own)
    expressions.after_batch(own, MANY_RECORDS)
    assert compiles(own)


def test_a_driver_with_little_to_read_interprets_until_a_batch_is_large(own: SparkSession) -> None:
    expressions = Expressions(own, MANY_RECORDS - 1)
    assert not compiles(own)
    expressions.after_batch(own, MANY_RECORDS - 1)
    assert not compiles(own)
    expressions.after_batch(own, MANY_RECORDS)
    assert compiles(own)


def test_the_next_query_starts_as_the_driver_did(own: SparkSession) -> None:
    expressions = Expressions(own, 0)
    running = own.newSession()
    expressions.after_batch(running, MANY_RECORDS)
    assert compiles(running) and not compiles(own)
    expressions.start()
    again = own.newSession()
    for name, value in INTERPRETED.items():
        again.conf.set(name, value)
    expressions.after_batch(again, MANY_RECORDS)
    assert compiles(again)
