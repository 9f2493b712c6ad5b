"""Every row is written exactly as Spark writes it, and the usual row is written the faster way."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from pipelines.engine.expressions import INTERPRETED
from pipelines.engine.frames import ddl_columns
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.plain_json import to_json
from tests.shared.session import COMPILED, configured

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = [pytest.mark.spark]

FLAT = (
    "text string, whole bigint, number int, small smallint, tiny tinyint, real double, half float, price decimal(8,2), "
    "share decimal(18,18), wide decimal(38,6), cents decimal(18,0), yes boolean, day date, `odd name` string, "
    '`größe"\\` string, `` string'
)
NESTED = (
    "tags array<string>, context map<string,string>, counts map<string,bigint>, grid array<array<int>>, "
    "place struct<name: string, lat: double, inner: struct<a: int, `odd name`: string>>, "
    "stays array<struct<`from`: date, nights: tinyint>>, by_day map<string,array<decimal(8,2)>>"
)
# left to Spark
OTHERS = "text string, at timestamp, raw binary, span interval day to second, days map<date,int>, nothing void"
TEXTS = [
    "", "a", "two words", "größe", "\u20ac", "\U0001f600", "\x00", "\x1f", "\x7f", "\x80", "\u2028", '"', "\\", "\\n", "/",
    "tab\there", "line\nbreak", "\r\b\f", "</script>", 'a"b\\c\x01d', "x" * 300, "é" * 200 + '"', "null", "1",
]  # fmt: skip
WHOLE = [0, 1, -1, 9, 10, -10, 99, 100, 127, -128]
DOUBLES = [
    0.0, -0.0, 1.0, -1.5, 0.1, 1 / 3, 1e7, 9_999_999.0, 1e-3, 9.99e-4, 123456789.125, 1e300, 5e-324, 2.0**53, float("nan"),
    float("inf"), float("-inf"),
]  # fmt: skip
DATES = ["0001-01-01", "0999-12-31", "1000-01-01", "1582-10-04", "1970-01-01", "2024-02-29", "9999-12-31"]
VALUES: dict[str, list[Any]] = {
    "string": TEXTS, "double": DOUBLES, "float": DOUBLES, "boolean": [True, False],
    "date": [date.fromisoformat(each) for each in DATES], "timestamp": [datetime(2024, 1, 2, 3, 4, 5, 678_000, UTC)],
    "binary": [b"", b"\xff"], "interval day to second": [timedelta(hours=25, seconds=1)], "void": [None],
}  # fmt: skip
BITS = {"bigint": 64, "int": 32, "smallint": 16, "tinyint": 8}
ROWS = 3_000


def value(chance: random.Random, kind: DataType) -> Any:
    if chance.random() < 0.1:
        return None
    name = kind.simpleString()
    if name in BITS:
        most = 2 ** (BITS[name] - 1)
        return chance.choice([*WHOLE, most - 1, -most, chance.randrange(-most, most)])
    if name.startswith("decimal"):
        digits, scale = map(int, name[8:-1].split(","))
        unscaled = chance.choice([0, 1, -1, 10, 10**digits - 1, 1 - 10**digits, chance.randrange(10**digits)])
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    match kind:
        case ArrayType():
            return [value(chance, kind.elementType) for _ in range(chance.randrange(4))]
        case MapType():
            keys = chance.sample(range(len(TEXTS)), chance.randrange(4))
            if isinstance(kind.keyType, StringType):
                return {TEXTS[key]: value(chance, kind.valueType) for key in keys}
            return {date(2024, 1, 1 + key): value(chance, kind.valueType) for key in keys}
        case StructType():
            return tuple(value(chance, field.dataType) for field in kind.fields)
    return chance.choice(VALUES[name])


def rows(spark: SparkSession, ddl: str) -> DataFrame:
    chance, kind = random.Random(7), ddl_columns(ddl)
    made = [tuple(value(chance, field.dataType) for field in kind.fields) for _ in range(ROWS)]
    return spark.createDataFrame(made, kind).coalesce(1)


def theirs(struct: Column) -> Column:
    return F.to_json(struct, {"ignoreNullFields": "false"})


def differ(frame: DataFrame) -> list[Any]:
    """Some rows for which both ways differ."""
    whole = F.struct("*")
    # the bytes: texts compare as equal if only their characters are
    both = frame.select(to_json(whole).cast("binary").alias("ours"), theirs(whole).cast("binary").alias("theirs"))
    return both.where(~F.col("ours").eqNullSafe(F.col("theirs"))).take(3)


def plain_rows(frame: DataFrame) -> int:
    found: int = java_class("org.apache.spark.sql.switchyard.JsonText").plainRows(frame._jdf)
    return found


WAYS = pytest.mark.parametrize("way", [COMPILED, INTERPRETED], ids=["compiled", "interpreted"])


@WAYS
@pytest.mark.parametrize("ddl", [FLAT, NESTED, OTHERS], ids=["flat", "nested", "others"])
def test_rows_are_written_as_spark_writes_them(spark: SparkSession, way: dict[str, str], ddl: str) -> None:
    with configured(spark, way):
        frame = rows(spark, ddl)
        assert differ(frame) == []
        assert frame.select(to_json(F.struct("*")).alias("text")).where("text is null").count() == 0


@pytest.mark.parametrize(("ddl", "least"), [(FLAT, ROWS // 3), (NESTED, ROWS // 3), (OTHERS, 0)])
def test_the_usual_row_is_plain(spark: SparkSession, ddl: str, least: int) -> None:
    found = plain_rows(rows(spark, ddl))
    # some rows have NaN, or a year before 1000
    assert found == 0 if least == 0 else least < found < ROWS


def test_a_text_that_is_not_utf8_is_written_as_spark_writes_it(spark: SparkSession) -> None:
    texts = [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b'"\xf0\x9f\x98', "größe".encode(), b"\xe2\x82\xac\n"]
    frame = spark.createDataFrame([(bytearray(each),) for each in texts], "value binary").coalesce(1)
    texted = frame.select(F.col("value").cast("string").alias("text"))
    assert differ(texted) == []
    assert plain_rows(texted) == 2


def test_a_null_struct_has_no_text(spark: SparkSession) -> None:
    frame = spark.range(4).select(F.when(F.col("id") > 1, F.struct("id")).alias("it"))
    for way in (COMPILED, INTERPRETED):
        with configured(spark, way):
            found = [row[0] for row in frame.select(to_json(F.col("it"))).collect()]
            assert found == [None, None, '{"id":2}', '{"id":3}']


def test_a_long_text_follows_a_short_one(spark: SparkSession) -> None:
    frame = spark.range(2_000).select(F.repeat(F.lit("é\n"), F.col("id").cast("int")).alias("text")).coalesce(1)
    assert differ(frame) == []
    assert plain_rows(frame) == 2_000
