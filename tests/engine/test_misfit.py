"""What is said of a JSON value that doesn't fit its schema: the first field, its type, and nothing of the value."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from pipelines.engine.misfit import misfit

TRADE = (
    StructType()
    .add("side", StringType())
    .add("price", DecimalType(8, 2))
    .add("size", IntegerType())
    .add("rate", DoubleType())
    .add("own", BooleanType())
    .add("at", StructType().add("place", StringType()).add("floor", LongType()))
    .add("legs", ArrayType(StructType().add("price", DoubleType())))
    .add("fees", MapType(StringType(), DoubleType()))
)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b'{"price": "much"}', "field price is not decimal(8,2)"),
        (b'{"price": 1234567.00}', "field price is not decimal(8,2)"),
        (b'{"price": -1e600000000}', "field price is not decimal(8,2)"),
        (b'{"rate": 1e-99999}', "the exponent of a number has more than four digits"),
        (b'{"size": 1.5}', "field size is not int"),
        (b'{"size": 3000000000}', "field size is not int"),
        (b'{"size": true}', "field size is not int"),
        (b'{"rate": "fast"}', "field rate is not double"),
        (b'{"own": 1}', "field own is not boolean"),
        (b'{"at": "home"}', "field at is not an object"),
        (b'{"at": {"floor": "top"}}', "field at.floor is not bigint"),
        (b'{"legs": {}}', "field legs is not an array"),
        (b'{"legs": [{"price": 1}, {"price": []}]}', "field legs[1].price is not double"),
        (b'{"fees": {"tax": "none"}}', "field fees{} is not double"),
        (b"[1]", "the value is an array, not a JSON object"),
        (b'"text"', "the value is a string, not a JSON object"),
        (b"7", "the value is a number, not a JSON object"),
        (b"null", "the value is null, not a JSON object"),
        (b'{"rate": NaN}', "the value is not JSON"),
        (b'{"side": "as', "the value is not JSON: Unterminated string starting at at character 9"),
        (b"", "the value is not JSON: Expecting value at character 0"),
        (b"\xff", "the value is not UTF-8"),
        (b"[" * 100_000, "the value is not JSON"),
    ],
)
def test_the_first_thing_that_does_not_fit_is_named(value: bytes, said: str) -> None:
    assert misfit(value, TRADE) == said


def test_what_fits_as_far_as_can_be_seen_is_told_in_general() -> None:
    assert (
        misfit(b'{"side": "ask"}', StructType().add("side", StringType()))
        == "the value is not JSON of struct<side:string>"
    )
