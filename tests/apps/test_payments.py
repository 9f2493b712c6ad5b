"""payments: each payment at the rate of its currency, in the table as the release has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.testing import AppTest
from tests.shared.payments.payments import payments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120), pytest.mark.usefixtures("compiled")]


def test_each_payment_is_worth_its_amount_at_the_newest_rate_of_its_currency(spark: SparkSession) -> None:
    with AppTest(spark, payments) as test:
        test.send("rates", {"rate": 1.05}, key="EUR")
        test.send("rates", {"rate": 0.95}, key="EUR")
        test.send("rates", {"rate": 1.1}, key="GBP")
        test.send("rates", None, key="GBP")
        test.send("paid", {"currency": "EUR", "amount": 10.5}, key="a")
        test.send("paid", {"currency": "GBP", "amount": 3}, key="b")
        batch = test.run()
        assert {row["id"]: row["worth"] for row in batch} == {"a": 9.98, "b": None}
        test.restart()
        test.send("paid", {"currency": "EUR", "amount": 20}, key="a")
        test.run()
        assert test.table == {
            ("a",): {"currency": "EUR", "worth": 19.0},
            ("b",): {"currency": "GBP", "worth": None},
        }
        assert test.schema == {"id": "string", "currency": "string", "worth": "decimal(12,2)"}
