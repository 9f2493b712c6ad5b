"""What is said of a JSON value that doesn't fit its schema: the first field, its type, and nothing of the value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pipelines.engine.frames import CORRUPT
from pipelines.engine.misfit import misfit
from pipelines.engine.plain_json import from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    .add("due", DateType())
    .add("made", TimestampType())
    .add("last", IntegerType())
)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b'{"price": "much"}', "field price is not decimal(8,2)"),
        (b'{"price": 1234567.00}', "field price is not decimal(8,2)"),
        (b'{"price": -1e600000000}', "field price is not decimal(8,2)"),
        (b'{"price": 1e-99999}', "field price is not decimal(8,2)"),
        (b'{"price": "1e-99999"}', "field price is not decimal(8,2)"),
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
        # text that Spark reads as a decimal is not at fault
        (b'{"price": "10.50", "size": "many"}', "field size is not int"),
        (b'{"price": "1,000.5", "size": "many"}', "field size is not int"),
        (b'{"price": 999999.994, "size": "many"}', "field size is not int"),
        (b'{"price": 999999.995}', "field price is not decimal(8,2)"),
        (b'{"price": "999999.995"}', "field price is not decimal(8,2)"),
        (b'{"price": true}', "field price is not decimal(8,2)"),
        # of more digits than Python's own limits
        (b'{"price": 1e999999999}', "field price is not decimal(8,2)"),
        (b'{"price": 1e99999999999999999999}', "field price is not decimal(8,2)"),
        (b'{"price": "-1e99999999999999999999"}', "field price is not decimal(8,2)"),
        (b'{"price": 1e-99999999999999999999, "size": 1.5}', "field size is not int"),
        (b'{"note": 1e99999999999999999999, "size": 1.5}', "field size is not int"),
        (b'{"due": "30 February"}', "field due is not date"),
        (b'{"due": 20240102, "last": "z"}', "field due is not date"),
        (b'{"due": "2024-01-02", "last": "z"}', "field last is not int"),
        (b'{"made": "noon"}', "field made is not timestamp"),
        (b'{"made": "2024-02-30T12:00:00Z"}', "field made is not timestamp"),
        (b'{"made": 1.5}', "field made is not timestamp"),
        (b'{"made": 1704164645, "last": "z"}', "field last is not int"),
        (b'{"made": "2024-01-02T12:00:00Z", "last": "z"}', "field last is not int"),
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


DATES = [
    "2024-01-02", "2024-1-2", "2024", "2024-1", "2024-01-02T03:04:05Z", "2024-01-02 junk", " 2024-01-02 ", "+2024-01-02",
    "-2024-01-02", "02024-01-02", "1234567-01-02", "5881580-07-11", "19723", "-5", "0000-01-01", "2024-02-29", "2000-02-29",
    "-0004-02-29",
]  # fmt: skip
NO_DATES = [
    "", "2024-02-30", "2023-02-29", "1900-02-29", "2024-13-01", "2024-00-01", "2024-01-00", "24-01-02", "2024-01-02x",
    "2024-01-", "2024/01/02", "2024-01-02+01:00", "3.5", "99999999999", "2147483648", "9999999-01-01", "now", "noon",
]  # fmt: skip
TIMESTAMPS = [
    "2024-01-02T03:04:05Z", "2024-01-02 03:04:05", "2024-01-02", "2024-01", "2024", "2024-01-02T3:4:5", "2024-01-02T03:04",
    "2024-01-02T03", "2024-01-02T03:04:05.", "2024-01-02T03:04:05.1234567890123Z", "2024-01-02T03:04:05 Europe/Paris",
    "2024-01-02T03:04:05+1", "2024-01-02T03:04:05+01:00", " 2024-01-02T03:04:05Z ",
    "+12024-01-02T00:00:00Z",
]  # fmt: skip
NO_TIMESTAMPS = [
    "", "noon", "12", "1704164645", "-5", "1.5", "2024-02-30T00:00:00Z", "2024-13-01T00:00:00Z", "2024-01-02T",
    "2024-01-02T25:00:00", "2024-01-02T24:00:00", "2024-01-02T23:60:00", "2024-01-02T23:59:60", "2024-01-02x03:04:05",
    "2024-01-02T03:04Z", "2024-01-02Z", "24:00", "12:30", "T12:30:10", "12:30:10Z", "294248-01-01T00:00:00Z",
]  # fmt: skip
DECIMALS = [
    "1",
    "-1.5",
    "+1",
    ".5",
    "5.",
    "1,000.5",
    "1e3",
    "1E3",
    "999999.994",
    "-999999.994",
    "1e-400",
    "\N{ARABIC-INDIC DIGIT ONE}",
]
NO_DECIMALS = [
    "",
    ",",
    "abc",
    "0x10",
    " 1",
    "1 ",
    "1e",
    "1d",
    "--1",
    "1.2.3",
    "999999.995",
    "-999999.995",
    "1e400",
    "NaN",
]
KINDS: list[tuple[DataType, list[str], list[str]]] = [
    (DateType(), DATES, NO_DATES),
    (TimestampType(), TIMESTAMPS, NO_TIMESTAMPS),
    (DecimalType(8, 2), DECIMALS, NO_DECIMALS),
    # sums of it have more digits than Python's context
    (DecimalType(38, 2), ["9" * 36 + ".994"], ["9" * 36 + ".995", "1" + "0" * 36]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), KINDS, ids=lambda each: str(each)[:20])
def test_a_text_fits_that_spark_reads_as_a_date_a_time_or_a_decimal(
    kind: DataType, good: list[str], bad: list[str]
) -> None:
    schema, general = StructType().add("field", kind), "the value is not JSON of struct<"
    assert [text for text in good if not misfit(json.dumps({"field": text}).encode(), schema).startswith(general)] == []
    said = f"field field is not {kind.simpleString()}"
    assert [text for text in bad if misfit(json.dumps({"field": text}).encode(), schema) != said] == []


@pytest.mark.spark
@pytest.mark.parametrize(("kind", "good", "bad"), KINDS, ids=lambda each: str(each)[:20])
def test_spark_reads_these_texts_so(spark: SparkSession, kind: DataType, good: list[str], bad: list[str]) -> None:
    rows = [(text, json.dumps({"field": text})) for text in good + bad]
    parsed = from_json(F.col("json"), StructType().add("field", kind), CORRUPT)
    found = spark.createDataFrame(rows, "text string, json string").select("text", parsed.alias("parsed"))
    read = {row["text"] for row in found.where(F.col(f"parsed.{CORRUPT}").isNull()).select("text").collect()}
    assert read == set(good)


def test_what_fits_as_far_as_can_be_seen_is_told_in_general() -> None:
    assert (
        misfit(b'{"side": "ask"}', StructType().add("side", StringType()))
        == "the value is not JSON of struct<side:string>"
    )
