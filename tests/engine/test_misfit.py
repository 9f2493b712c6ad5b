"""What is said of a JSON value that doesn't fit its schema: the first field, its type, and nothing of the value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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
    VariantType,
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
    .add("photo", BinaryType())
    .add("more", VariantType())
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
        (b'{"made": "294247-01-10T04:00:54.776Z"}', "field made is not timestamp"),
        (b'{"photo": "QUI"}', "field photo is not binary"),
        (b'{"photo": 5}', "field photo is not binary"),
        (b'{"photo": "QUI=", "last": "z"}', "field last is not int"),
        (b'{"side": "\\ud800"}', "field side has half of a surrogate pair"),
        (b'{"side": "\\ude00\\ud83d"}', "field side has half of a surrogate pair"),
        (b'{"at": {"place": "x\\uDFFF"}}', "field at.place has half of a surrogate pair"),
        (b'{"fees": {"a": 1, "\\udc00": 2}}', "field fees has half of a surrogate pair in a key"),
        (b'{"more": "\\ud800"}', "field more has half of a surrogate pair"),
        (b'{"more": [1, {"a": [{"\\ud800": 1}]}]}', "field more has half of a surrogate pair"),
        (b'{"more": {"a": {"b": "\\ud800"}}}', "field more has half of a surrogate pair"),
        # a pair is one letter; nobody reads the others; an object is read as its JSON text
        (b'{"side": "\\ud83d\\ude00 \\\\ud800", "last": "z"}', "field last is not int"),
        (b'{"note": "\\ud800", "at": {"note": "\\ud800"}, "\\ud800": 1, "last": "z"}', "field last is not int"),
        (b'{"side": {"a": "\\ud800"}, "last": "z"}', "field last is not int"),
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


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (b"IBM", "the key is not JSON: Expecting value at character 0"),
        (b'{"size": "many"}', "field size is not int in the key"),
        (b'"IBM"', "the key is a string, not a JSON object"),
        (b'{"side": "\\ud800"}', "field side has half of a surrogate pair in the key"),
    ],
)
def test_of_a_key_it_is_said_that_it_is_one(key: bytes, said: str) -> None:
    assert misfit(key, TRADE, "key") == said


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
    "294247-01-10T04:00:54.775807Z", "294247-01-10T04:00:54.7758079", "-290308-12-21T19:59:05.224192Z", "-290308-12-22",
    "294247-01-10T05:00:54.775807+01:00", "294247-01-10T05:00:54+1", "294247-01-10T05:00:54UTC+1", "294247-01-10T05:00:54+0100",
    "294247-01-10T12:00:54 Asia/Tokyo", "-290308-12-21T18:59:05.224192-01:00", "2024-01-02T03:04:05-18:00",
]  # fmt: skip
NO_TIMESTAMPS = [
    "", "noon", "12", "1704164645", "-5", "1.5", "2024-02-30T00:00:00Z", "2024-13-01T00:00:00Z", "2024-01-02T",
    "2024-01-02T25:00:00", "2024-01-02T24:00:00", "2024-01-02T23:60:00", "2024-01-02T23:59:60", "2024-01-02x03:04:05",
    "2024-01-02T03:04Z", "2024-01-02Z", "24:00", "12:30", "T12:30:10", "12:30:10Z", "294248-01-01T00:00:00Z",
    "294247-01-10T04:00:54.775808Z", "294247-01-10T04:00:54.776Z", "+294247-01-10T05:00:54.776+01:00", "294247-01-11",
    "-290308-12-21T19:59:05.224191Z", "-290308-12-21", "-290309-01-01", "294247-01-11T23:00:54 Europe/Paris",
    "294247-01-10T04:00:54-00:01", "2024-01-02T03:04:05+18:01",
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
BYTES = ["", "QUI=", "QUJD", "QQ==QQ==", " QUI=", "QUI= ", "\nQUI=\t", "QUJ=", "QR==", "QUJD QUJD", "  ", "+/+/"]
NO_BYTES = [
    "QUI", "Q===", "QU I=", "QUI=x", "Q-__", "QUJ\nD", "QQ= =", "====", "=", "\x7fQUJD", "QUJDQ", "\u00a0QUJD", "\ud800",
]  # fmt: skip
KINDS: list[tuple[DataType, list[str], list[str]]] = [
    (DateType(), DATES, NO_DATES),
    (TimestampType(), TIMESTAMPS, NO_TIMESTAMPS),
    (BinaryType(), BYTES, NO_BYTES),
    (DecimalType(8, 2), DECIMALS, NO_DECIMALS),
    # sums of it have more digits than Python's context
    (DecimalType(38, 2), ["9" * 36 + ".994"], ["9" * 36 + ".995", "1" + "0" * 36]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), KINDS, ids=lambda each: str(each)[:20])
def test_a_text_fits_that_spark_reads_as_a_date_a_time_bytes_or_a_decimal(
    kind: DataType, good: list[str], bad: list[str]
) -> None:
    schema, general = StructType().add("field", kind), "the value is not JSON of struct<"
    assert [text for text in good if not misfit(json.dumps({"field": text}).encode(), schema).startswith(general)] == []
    said = f"field field is not {kind.simpleString()}"
    assert [text for text in bad if misfit(json.dumps({"field": text}).encode(), schema) != said] == []


@pytest.mark.spark
@pytest.mark.parametrize(("kind", "good", "bad"), KINDS, ids=lambda each: str(each)[:20])
def test_spark_reads_these_texts_so(spark: SparkSession, kind: DataType, good: list[str], bad: list[str]) -> None:
    # a number, as Spark can't be given half of a surrogate pair
    rows = [(number, json.dumps({"field": text})) for number, text in enumerate(good + bad)]
    parsed = from_json(F.col("json"), StructType().add("field", kind), CORRUPT)
    found = spark.createDataFrame(rows, "number int, json string").select("number", parsed.alias("parsed"))
    read = found.where(F.col(f"parsed.{CORRUPT}").isNull()).select("number").collect()
    assert [(good + bad)[number] for (number,) in sorted(read)] == good


def test_what_fits_as_far_as_can_be_seen_is_told_in_general() -> None:
    schema = StructType().add("side", StringType())
    assert misfit(b'{"side": "ask"}', schema) == "the value is not JSON of struct<side:string>"
    assert misfit(b'{"side": "ask"}', schema, "key") == "the key is not JSON of struct<side:string>"
