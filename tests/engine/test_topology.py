"""What `switchyard show` says of a function: its steps, from the result back to the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from pipelines.apps.product_counter import product_counter
from pipelines.apps.stock_stats import stock_stats
from pipelines.apps.word_count import word_count
from pipelines.engine.rehearsal import Rehearsal
from pipelines.model import AppendStream, Json, Stream
from pipelines.model.app import App

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def steps_of(spark: SparkSession, app: App) -> list[str]:
    """Each step, two spaces deeper than the one that reads it, with a star if it keeps state."""
    rehearsal = Rehearsal(spark, app, {})
    return [f"{'  ' * step.depth}{step.does}{' *' * step.state}" for step in rehearsal.steps(rehearsal.result())]


def joined(orders: Any, payments: Any, settings: Any) -> Any:
    paid = payments.withColumnRenamed("event_time", "paid_at").drop("topic", "partition", "offset")
    close = F.expr("order_id = id AND paid_at BETWEEN event_time AND event_time + INTERVAL 1 HOUR")
    both = orders.where("amount > 0").join(paid.where(F.col("id").isNotNull()), close)
    return both.dropDuplicatesWithinWatermark(["order_id"]).select("order_id", "amount")


JOINED = App(
    name="joined",
    inputs={
        "orders": Stream(topic="orders", value=Json("order_id string, amount double")),
        "payments": Stream(topic="payments", value=Json("id string")),
    },
    results={"": AppendStream(key=("order_id",))},
    function=joined,
    watermark="10 seconds",
)


@pytest.mark.parametrize(
    ("app", "steps"),
    [
        (stock_stats, ["aggregate by ticker, window *", "  where side = 'ask'", "    input trades"]),
        (
            word_count,
            [
                "aggregate by word *",
                "  where (NOT (word = '')) AND (NOT (word = 'the'))",
                r"    explode(split(lower(line), '\\W+', -1))",
                "      input lines",
            ],
        ),
        (product_counter, ["own state by store *", "  input views"]),
        (
            JOINED,
            [
                "drop duplicates within the watermark by order_id *",
                "  inner join on (order_id = id) AND between(paid_at, event_time, CAST(event_time + INTERVAL '01' HOUR AS TIMESTAMP)) *",
                "    where amount > CAST(0 AS DOUBLE)",
                "      input orders",
                "    where id IS NOT NULL",
                "      input payments",
            ],
        ),
    ],
    ids=lambda value: value.name if isinstance(value, App) else None,
)
def test_the_steps_of_a_function_are_told(spark: SparkSession, app: App, steps: list[str]) -> None:
    assert steps_of(spark, app) == steps
