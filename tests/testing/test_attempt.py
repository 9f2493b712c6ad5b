"""The records of `switchyard try`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.word_count import word_count
from pipelines.errors import BadUsage
from pipelines.model import App, AppendStream, Json, StaticTable, Stream
from pipelines.testing import AppTest
from pipelines.testing.attempt import attempt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_input_may_be_left_out_where_there_is_one(spark: SparkSession) -> None:
    with AppTest(spark, word_count) as test:
        records = [{"value": "fox"}, {"input": "lines", "value": "fox", "time": 5, "partition": 1}]
        assert attempt(test, word_count, records, 1).rows == [{"word": "fox", "count": 2}]


def test_the_rows_of_a_static_table_come_first(spark: SparkSession) -> None:
    app = App(
        name="paid",
        inputs={
            "paid": Stream(topic="paid", key="id string", value=Json("currency string")),
            "rates": StaticTable(topic="rates", key="currency string", value=Json("rate int NOT NULL")),
        },
        results={"": AppendStream(key=("id",))},
        function=lambda paid, rates, settings: paid.join(rates, "currency", "left").select("id", "rate"),
    )
    rate = {"input": "rates", "key": "EUR", "value": {"rate": 2}}
    paid = {"input": "paid", "key": "1", "value": {"currency": "EUR"}}
    with AppTest(spark, app) as test:
        bad = {**rate, "value": {}}
        assert attempt(test, app, [rate, paid, bad], 1).rows == [{"id": "1", "rate": 2}]
        assert list(test.malformed) == ["rates"]
        with pytest.raises(BadUsage, match="does not change while a release lives"):
            attempt(test, app, [rate], 2)


TWO = App(
    name="two",
    inputs={name: Stream(topic=name, value=Json("n int")) for name in ("left", "right")},
    results={"": AppendStream(key=("n",))},
    function=lambda left, right, settings: left.select("n", "topic").unionAll(right.select("n", "topic")),
)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([1], "batch 3, record 2 is not a JSON object"),
        ({"value": {"n": 1}}, "batch 3, record 2 names no input; app two has left, right"),
        ({"input": "middle", "value": {}}, "app two has no input middle"),
        (
            {"input": "left", "offset": 3},
            "batch 3, record 2 has offset; it may have input, key, value, time, partition",
        ),
        ({"input": "left", "time": "noon"}, "batch 3, record 2: 'noon' is not a time"),
        ({"input": "left", "time": [1]}, r"batch 3, record 2: \[1\] is not a time"),
    ],
)
def test_a_record_that_can_not_be_sent_is_refused(spark: SparkSession, record: Any, said: str) -> None:
    with AppTest(spark, TWO) as test, pytest.raises(BadUsage, match=said):
        attempt(test, TWO, [{"input": "left", "value": {"n": 1}}, record], 3)
