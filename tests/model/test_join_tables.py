"""join_tables: the newest rows of two tables side by side, in whatever batches the records come."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

import pytest
from pyspark.sql import functions as F

from pipelines.errors import BadUsage
from pipelines.model import App, Changelog, Json, Stream, Table, join_tables
from pipelines.testing import AppTest, Batch
from tests.engine.test_probe import on_nothing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

How = Literal["inner", "left", "outer"]
Row = tuple[int | None, str | None]


def joining(body: Callable[..., DataFrame]) -> App:
    return App(
        name="joining",
        inputs={
            "stock": Changelog(topic="stock", key="sku string", value=Json("pieces int NOT NULL")),
            "prices": Changelog(topic="prices", key="sku string", value=Json("price string")),
        },
        results={"": Table(key=("sku",))},
        function=lambda settings, **given: body(**given),
    )


def table_of(test: AppTest) -> dict[str, Row]:
    return {sku: (row["pieces"], row["price"]) for (sku,), row in test.table.items()}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", {"both": (2, "9"), "null": (1, None)}),
        ("left", {"both": (2, "9"), "null": (1, None), "unpriced": (4, None), "free": (7, None)}),
        (
            "outer",
            {
                "both": (2, "9"),
                "null": (1, None),
                "unpriced": (4, None),
                "free": (7, None),
                "gone": (None, "3"),
                "priced": (None, "5"),
            },
        ),
    ],
)
def test_a_key_has_a_row_where_the_tables_that_count_have_it(
    spark: SparkSession, how: How, expected: dict[str, Row]
) -> None:
    with AppTest(spark, joining(lambda stock, prices: join_tables(stock, prices, how=how))) as test:
        stock: dict[str, int] = {"both": 1, "null": 1, "unpriced": 4, "free": 7, "gone": 8, "never": 9}
        for sku, pieces in stock.items():
            test.send("stock", {"pieces": pieces}, key=sku)
        for sku, price in {"both": "9", "null": None, "free": "1", "gone": "3", "priced": "5"}.items():
            test.send("prices", {"price": price}, key=sku)
        test.run()
        # an older time, but a newer record
        test.send("stock", {"pieces": 2}, key="both", time=-60)
        test.send("prices", None, key="free")
        for sku in ("gone", "never"):
            test.send("stock", None, key=sku)
        test.restart()
        test.run()
        assert table_of(test) == expected


def test_a_row_goes_with_its_table_and_comes_back(spark: SparkSession) -> None:
    with AppTest(spark, joining(lambda stock, prices: join_tables(stock, prices))) as test:

        def now(source: str, value: dict[str, Any] | None) -> Batch:
            test.send(source, value, key="nut")
            return test.run()

        now("stock", {"pieces": 1})
        assert table_of(test) == {}
        now("prices", {"price": "2"})
        assert table_of(test) == {"nut": (1, "2")}
        now("stock", None)
        assert table_of(test) == {}
        now("stock", {"pieces": 3})
        assert table_of(test) == {"nut": (3, "2")}


def test_names_may_have_any_signs(spark: SparkSession) -> None:
    app = App(
        name="joining",
        inputs={
            "stock": Changelog(topic="stock", key="`the.sku` string", value=Json("`pieces.there` int NOT NULL")),
            "prices": Changelog(topic="prices", key="`the.sku` string", value=Json("`a ``price`` of` string")),
        },
        results={"": Table(key=("the.sku",))},
        function=lambda settings, stock, prices: join_tables(stock, prices),
    )
    with AppTest(spark, app) as test:
        test.send("stock", {"pieces.there": 1}, key="nut")
        test.send("prices", {"a `price` of": "2"}, key="nut")
        test.run()
        assert test.table == {("nut",): {"pieces.there": 1, "a `price` of": "2"}}


@pytest.mark.parametrize("batches", [1, 7])
def test_batches_make_no_difference(spark: SparkSession, batches: int) -> None:
    chance = random.Random(11)
    records: list[tuple[str, str, Any]] = [
        (source, f"k{chance.randrange(12)}", None if chance.random() < 0.3 else chance.randrange(100))
        for source in chance.choices(("stock", "prices"), k=140)
    ]
    tables: dict[str, dict[str, Any]] = {"stock": {}, "prices": {}}
    for source, sku, value in records:
        tables[source][sku] = value
    expected = {
        sku: (pieces, str(price))
        for sku, pieces in tables["stock"].items()
        if pieces is not None and (price := tables["prices"].get(sku)) is not None
    }
    assert 0 < len(expected) < 12
    with AppTest(spark, joining(lambda stock, prices: join_tables(stock, prices))) as test:
        size = len(records) // batches
        for start in range(0, len(records), size):
            for source, sku, value in records[start : start + size]:
                row = {"pieces": value} if source == "stock" else {"price": str(value)}
                test.send(source, None if value is None else row, key=sku)
            test.run()
        assert table_of(test) == expected


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            lambda stock, prices: join_tables(stock.drop("deleted"), prices),
            ["left table", "is not a table", "Changelog"],
        ),
        (
            lambda stock, prices: join_tables(stock, prices.drop("offset")),
            ["right table", "is not a table: it lacks offset"],
        ),
        (lambda stock, prices: join_tables(stock.drop("pieces"), prices), ["left table", "no column besides its key"]),
        (
            lambda stock, prices: join_tables(stock.withColumnRenamed("pieces", "PRICE"), prices),
            ["both tables have a column PRICE", 'right.withColumnRenamed("PRICE", "right_PRICE")'],
        ),
        (
            lambda stock, prices: join_tables(stock.withColumn("sku", F.hash("sku")), prices),
            ["the left table has the key (sku int), the right one (sku string)"],
        ),
        (
            lambda stock, prices: join_tables(stock, prices, how=cast(Any, "cross")),
            ["no how='cross'", "inner, left or outer"],
        ),
    ],
    ids=["no-table", "no-offset", "no-value", "same-name", "other-key", "how"],
)
def test_arguments_that_make_no_sense_are_refused_with_a_way_out(
    spark: SparkSession, body: Callable[..., DataFrame], words: list[str]
) -> None:
    with pytest.raises(BadUsage) as refused:
        on_nothing(spark, joining(body))
    said = f"{refused.value.what} {refused.value.fix}"
    assert [word for word in words if word not in said] == [], said


def test_a_stream_is_no_table(spark: SparkSession) -> None:
    app = joining(lambda stock, prices: join_tables(stock, prices))
    stream = Stream(topic="stock", key="sku string", value=Json("pieces int NOT NULL"))
    with pytest.raises(BadUsage, match="the left table of join_tables is not a table"):
        on_nothing(spark, replace(app, inputs={**app.inputs, "stock": stream}))
