"""A golden test sees each digit of a decimal."""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from pipelines.testing.exact import plain, reader

MONEY = DecimalType(20, 2)
COLUMNS = StructType([
    StructField("sum", MONEY),
    StructField("mean", DoubleType()),
    StructField("count", LongType()),
    StructField("all", ArrayType(MONEY)),
    StructField("by", MapType(StringType(), StructType([StructField("sum", MONEY), StructField("mean", DoubleType())]))),
])  # fmt: skip


def test_a_decimal_keeps_its_digits_and_a_double_stays_a_float() -> None:
    read = reader(COLUMNS)
    row = read(
        '{"sum":12345678901234567.01,"mean":0.1,"count":3,"all":[0.10,null,7],"by":{"x":{"sum":0.30,"mean":0.3}}}'
    )
    assert row == {
        "sum": Decimal("12345678901234567.01"),
        "mean": 0.1,
        "count": 3,
        "all": [Decimal("0.1"), None, Decimal(7)],
        "by": {"x": {"sum": Decimal("0.3"), "mean": 0.3}},
    }
    assert row["sum"] != Decimal("12345678901234567.02")
    assert read('{"sum":0.10}')["sum"] == 0.1 and row["sum"] != 12345678901234567.01
    assert isinstance(read('{"sum":7}')["sum"], Decimal)


def test_a_decimal_is_shown_with_all_its_digits() -> None:
    assert plain([{"sum": Decimal("12.50"), "more": [Decimal("12345678901234567.01")], "text": "a"}]) == [
        {"sum": 12.5, "more": ["12345678901234567.01"], "text": "a"}
    ]
