"""Every record is read exactly as Spark reads it, and the usual record is read the faster way."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from pipelines.engine.expressions import INTERPRETED
from pipelines.engine.frames import CORRUPT, ddl_columns
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.plain_json import from_json, is_utf8
from tests.shared.session import COMPILED, configured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.spark]

DDL = (
    "text string, whole bigint, number int, small smallint, tiny tinyint, real double, price decimal(8,2), "
    "share decimal(18,18), yes boolean, at timestamp, `odd name` string, `größe` string"
)
NESTED = (
    "text string, tags array<string>, context map<string,string>, counts map<string,bigint>, day date, "
    "place struct<name: string, lat: double, inner: struct<a: int, `odd name`: string>>, grid array<array<int>>, "
    "stays array<struct<`from`: date, nights: tinyint>>, by_day map<string,array<decimal(8,2)>>, "
    "seen array<timestamp>, flags map<string,boolean>, shares array<double>"
)
OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "allowNonNumericNumbers": "false"}
# half of a surrogate pair, as far as the records here have one
HALF = r"\\u[dD][89abAB]\w\w(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]\w\w)\\u[dD][c-fC-F]"
NAMES = [
    "text", "whole", "number", "small", "tiny", "real", "price", "share", "yes", "at", "odd name", "größe",
    "more", "Text", "", CORRUPT, "te\\u0078t", "te\"xt",
]  # fmt: skip
NUMBERS = [
    "0", "-0", "1", "-1", "007", "+1", "1.", ".5", "-", "127", "128", "-128", "-129", "32767", "32768", "2147483647",
    "2147483648", "-2147483648", "-2147483649", "999999999999999999", "1000000000000000000", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "1e5", "1E5", "1e-5", "1.5e3", "1e999", "0.0", "-0.0", "0.1", "-0.1",
    "123.45", "123.456", "999999.99", "9999999.99", "1000000", "999999.995", "0.123456789012345678", "1.0000000000000000001",
    "0.30000000000000004", "9007199254740993", "9007199254740993.5", "123456789.12345678", "5.0E-324", "NaN", "Infinity",
    "-Infinity", "0x10", "1_000", "12345678901234567890123456789", "0." + "0" * 30 + "1", "1" * 2_000,
]  # fmt: skip
STRINGS = [
    "", "a", "two words", "größe", "\u20ac", "\U0001f600", "\\n", "\\u0041", "\\ud83d\\ude00", "\\ud83d", "\\x",
    "\\\"", "tab\there", "line\nbreak", "\x00", "\x7f", "null", "1", "1.5", "true", "NaN", "2024-01-02T03:04:05Z",
    "2024-01-02T03:04:05.123456Z", "2024-01-02 03:04:05", "2024-01-02", "2024-13-02T03:04:05Z", "2024-01-02T03:04:05+01:00",
    "2024-01-02T03:04:05.1234567Z", "+12024-01-02T00:00:00Z", "epoch", "now", "0001-01-01T00:00:00Z", "24:00",
]  # fmt: skip
OTHERS = [
    "null", "true", "false", "True", "nul", "[]", "[1, 2]", "{}", '{"a": 1}', '[{"a": "}"}]', "'a'", "", "undefined",
]  # fmt: skip
SPACE = ["", "", "", " ", "\t", "\n ", "\r\n", "\x0b", "\u00a0", "/* */"]

DATES = [
    "2024-01-02",
    "2024-02-30",
    "0000-01-01",
    "9999-12-31",
    "2024-1-2",
    "2024-01-02T03:04:05Z",
    "2024",
    "+2024-01-02",
    "now",
]
KEYS = ["a", "b", "odd name", "", "größe", "te\\u0078t", "A"]

SEED = 7
RECORDS = 6_000


def value(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.4:
        return chance.choice(NUMBERS)
    return '"' + chance.choice(STRINGS) + '"' if kind < 0.8 else chance.choice(OTHERS)


def fitting(chance: random.Random) -> str:
    """A record as it should be, or nearly."""
    fields = {
        "text": chance.choice(["a", "größe", "two words"]), "whole": chance.randrange(-(10**17), 10**17),
        "number": chance.randrange(-(2**31), 2**31), "real": chance.uniform(-1e6, 1e6), "yes": chance.random() < 0.5,
        "price": round(chance.uniform(-999_999, 999_999), chance.randrange(3)), "at": "2024-01-02T03:04:05.678Z",
        "tiny": chance.randrange(-128, 128), "more": None,
    }  # fmt: skip
    names = chance.sample(sorted(fields), chance.randrange(len(fields) + 1))
    return json.dumps({name: fields[name] for name in names}, ensure_ascii=False)


def record(chance: random.Random) -> bytes:
    """A record that is usual, odd or broken."""
    if chance.random() < 0.5:
        text = fitting(chance)
    else:
        gap = [chance.choice(SPACE) for _ in range(4)]
        pairs = [
            f'{gap[0]}"{chance.choice(NAMES)}"{gap[1]}:{gap[2]}{value(chance)}' for _ in range(chance.randrange(5))
        ]
        text = f"{gap[3]}{{{','.join(pairs)}}}{gap[0]}"
    return damaged(chance, text)


def damaged(chance: random.Random, text: str) -> bytes:
    """`text`, sometimes as a broken producer or a cut record gives it."""
    found = bytearray(text.encode())
    while found and chance.random() < 0.15:
        at = chance.randrange(len(found))
        change = chance.randrange(4)
        if change == 0:
            del found[at]
        elif change == 1:
            del found[at:]
        elif change == 2:
            found[at] = chance.randrange(256)
        else:
            found[at:at] = chance.choice([b",", b'"', b"}", b"\\", b"\xc3", b"0", b" "])
    return bytes(found)


def nested(chance: random.Random, kind: DataType, *, odd: float) -> str:
    """A value of a type as JSON. `odd`: how often it, or a part of it, is something else."""
    if chance.random() < odd:
        return value(chance)
    if chance.random() < 0.1:
        return "null"
    comma = chance.choice([",", ", ", " ,\n"])
    match kind:
        case ArrayType():
            items = [nested(chance, kind.elementType, odd=odd) for _ in range(chance.randrange(4))]
            return f"[{comma.join(items)}]"
        case MapType():
            # JSON allows a key twice
            keys = chance.choices(KEYS, k=chance.randrange(4)) if odd else chance.sample(KEYS[:4], chance.randrange(4))
            pairs = [f'"{key}": {nested(chance, kind.valueType, odd=odd)}' for key in keys]
        case StructType():
            fields = chance.sample(kind.fields, chance.randrange(len(kind.fields) + 1))
            pairs = [f'"{field.name}": {nested(chance, field.dataType, odd=odd)}' for field in fields]
            if chance.random() < odd:
                pairs += [f'"{chance.choice(KEYS)}": {value(chance)}', *pairs[:1]]
        case StringType():
            return json.dumps(chance.choice(["a", "größe", ""]), ensure_ascii=False)
        case DateType():
            return f'"{chance.choice(DATES if odd else DATES[:1])}"'
        case TimestampType():
            return f'"{chance.choice(STRINGS if odd else ["2024-01-02T03:04:05.678Z"])}"'
        case BooleanType():
            return chance.choice(["true", "false"])
        case DoubleType() | DecimalType():
            return chance.choice(["0", "-1.5", "123.45", "-0.0", "7"])
        case _:
            return str(chance.randrange(-128, 128))
    return f"{{{comma.join(pairs)}}}"


def is_plain(text: str, ddl: str = DDL) -> bool:
    found: bool = java_class("org.apache.spark.sql.switchyard.PlainJson").isPlain(text, ddl)
    return found


def compared(frame: DataFrame, schema: StructType) -> DataFrame:
    """What both ways read of `value`."""
    text, wanted = F.col("value").cast("string"), StructType([*schema.fields, StructField(CORRUPT, StringType())])
    return frame.select(
        "value", from_json(text, schema, CORRUPT).alias("ours"), F.from_json(text, wanted, OPTIONS).alias("theirs")
    )


def differ(both: DataFrame) -> list[Row]:
    """Some records for which they differ; to a comparison of numbers, -0.0 and 0.0 are equal. What else was read of a
    malformed record counts for nothing: it is a dead letter. Only here, a record with half of a surrogate pair may be
    one: Spark reads a question mark.
    """
    ours, theirs = (F.to_json(each, {"ignoreNullFields": "false"}) for each in ("ours", "theirs"))
    same = ours.eqNullSafe(theirs)
    # Spark doesn't compare maps
    if "map<" not in both.schema.simpleString():
        same = same & F.col("ours").eqNullSafe(F.col("theirs"))
    malformed = F.col(f"ours.{CORRUPT}") == F.col(f"theirs.{CORRUPT}")
    halved = F.col(f"ours.{CORRUPT}").isNotNull() & F.col("value").cast("string").rlike(HALF)
    return both.where(~(same | F.coalesce(malformed | halved, F.lit(False)))).take(3)


WAYS = pytest.mark.parametrize("way", [COMPILED, INTERPRETED], ids=["compiled", "interpreted"])


def share_of_good(spark: SparkSession, way: dict[str, str], records: list[bytes], ddl: str) -> float:
    """Asserts that `records` are read as Spark reads them. Returns how many of them are well-formed, 0 to 1."""
    with configured(spark, way):
        frame = spark.createDataFrame([(bytearray(each),) for each in records], "value binary").coalesce(1)
        both = compared(frame, ddl_columns(ddl))
        assert differ(both) == []
        good = both.where(F.col(f"theirs.{CORRUPT}").isNull() & F.col("theirs").isNotNull()).count()
    return good / len(records)


@WAYS
def test_records_are_read_as_spark_reads_them(spark: SparkSession, way: dict[str, str]) -> None:
    chance = random.Random(SEED)
    good = share_of_good(spark, way, [record(chance) for _ in range(RECORDS)], DDL)
    # both kinds are there: else equality says little
    assert 0.3 < good < 0.9


@WAYS
def test_arrays_maps_and_structs_are_read_as_spark_reads_them(spark: SparkSession, way: dict[str, str]) -> None:
    chance = random.Random(SEED)
    kind = ddl_columns(NESTED)
    records = [damaged(chance, nested(chance, kind, odd=chance.choice([0, 0.05, 0.2]))) for _ in range(RECORDS)]
    assert 0.3 < share_of_good(spark, way, records, NESTED) < 0.9


def test_the_usual_record_with_arrays_maps_and_structs_is_plain(spark: SparkSession) -> None:
    chance = random.Random(SEED)
    kind = ddl_columns(NESTED)
    texts = [text for _ in range(200) if (text := nested(chance, kind, odd=0)) != "null"]
    assert all(is_plain(text, NESTED) for text in texts)


@pytest.mark.parametrize(
    "text",
    [
        '{"tags": ["a",]}', '{"tags": ["a" "b"]}', '{"tags": [1]}', '{"tags": {}}', '{"tags": "a"}', '{"tags": ["a"}',
        '{"counts": {"a": 1, "a": 2}}', '{"counts": {"a": "1"}}', '{"counts": {"größe": 1}}', '{"counts": {"a": 1,}}',
        '{"counts": []}', '{"counts": {a: 1}}', '{"place": {"lat": 1.0, "lat": 2.0}}', '{"place": {"lat": "x"}}',
        '{"place": []}', '{"place": {"inner": {"a": 2147483648}}}', '{"grid": [[1], 2]}', '{"day": "soon"}', '{"day": 1}',
        '{"stays": [{"nights": 128}]}', '{"counts": {' + ", ".join(f'"k{n}": 1' for n in range(51)) + "}}",
    ],
)  # fmt: skip
def test_an_unusual_array_map_or_struct_is_left_to_spark(spark: SparkSession, text: str) -> None:
    assert not is_plain(text, NESTED)


def test_the_usual_record_is_plain(spark: SparkSession) -> None:
    chance = random.Random(SEED)
    plain = [is_plain(fitting(chance)) for _ in range(200)]
    assert sum(plain) == len(plain)


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", '"a"', "{", '{"text": "a"', '{"text": "a"} x', '{"text": "\\n"}', '{"text": 1}', '{"whole": 1.0}',
        '{"number": 2147483648}', '{"price": 1.234}', '{"text": "a", "text": "b"}', '{"more": {}}', '{"real": 1e5}',
        '{"größe": "a"}', '{"yes": "true"}', '{"at": "soon"}', '{"text": "a",}',
    ],
)  # fmt: skip
def test_an_unusual_record_is_left_to_spark(spark: SparkSession, text: str) -> None:
    assert not is_plain(text)


COSTLY = [
    '{"price": 1e600000000}', '{"price": -1.5E+600000000}', '{"price": 1e-99999}', '{"price": "1e600000000"}',
    '{"price": "1\\u0065600000000"}', '{"price": "1e6,0,0,0,0,0,0,0,0"}', '{"price": "1e\u0666\u0660\u0660\u0660\u0660\u0660\u0660\u0660"}',
    '{"price": "0.' + "0" * 1_000 + '1"}', '{"price": 1e600000000, "tex', '{"text": "a", "share": 1e00001}',
    '{"price": "1e600000000", "tex', '{"price": "1e600000000", "price": "1"}', '{"price": "1", "price": 1e600000000}',
    """{'text': '"', 'price': 1e600000000}""", '{"text": "\\\\", "price": 1e12345}', '{"text": "\\"", "price": "1e12345"}',
]  # fmt: skip
NESTED_COSTLY = [
    '{"by_day": {"a": [1, 1e600000000]}}', '{"by_day": {"b": null, "a": ["1e600000000", null]}}',
    '{"by_day": {"a": [1]}, "by_day": {"a": [2, "1e600000000"]}}',
]  # fmt: skip
# is what Spark makes of it
CHEAP = [
    '{"price": 1e-9999}', '{"price": 15e-1}', '{"price": "1e5"}', '{"price": "1.5"}', '{"price": 1e9999}', '{"price": "e"}',
    '{"text": "4e91234567", "price": "1,234.5"}', '{"text": "1e99999", "price": 2.5e0}', '{"real": 1e-99999}',
    '{"more": 1e99999, "price": 1e0}', '{"größe": "größer", "price": "2"}', '{"text": "' + "x" * 2_000 + '", "price": "2"}',
    '{"text": "1e99999\\"1e99999", "price": 1e0}', '{"1e99999": 12345, "text": "\\n"}', "{'text': '1e99999', 'price': 1}",
    '{"real": 1e99999}', '{"price": [1e99999]}', '{"price": ""}', "1e99999", "null", '["1e99999"]', '{"more": 12345e1}',
    '{"tex: 1e0, "price": 1e99999}', '{"price": true, "text": "1e9"}', '{"price": null, "text": "1e9"}',
]  # fmt: skip


def malformed(spark: SparkSession, way: dict[str, str], texts: list[str], ddl: str) -> list[str | None]:
    """What `from_json` gives as malformed of each of `texts`: the text, or None if it is well-formed."""
    with configured(spark, way):
        frame = spark.createDataFrame([(text,) for text in texts], "value string").coalesce(1)
        read = frame.select("value", from_json(F.col("value"), ddl_columns(ddl), CORRUPT).alias("it"))
        return [row[CORRUPT] for row in read.select("value", "it.*").collect()]


@WAYS
@pytest.mark.parametrize(("ddl", "texts"), [(DDL, COSTLY), (NESTED, NESTED_COSTLY)], ids=["flat", "nested"])
def test_a_decimal_that_is_costly_to_read_is_malformed(
    spark: SparkSession, way: dict[str, str], ddl: str, texts: list[str]
) -> None:
    assert malformed(spark, way, texts, ddl) == texts


@WAYS
def test_other_records_with_exponents_are_read_as_spark_reads_them(spark: SparkSession, way: dict[str, str]) -> None:
    good = share_of_good(spark, way, [text.encode() for text in CHEAP], DDL)
    assert 0.5 < good < 0.9


TIMES = [
    "12:30", "1:2", "12:30:15.5", "T12:30", "12:30Z", "12:30+01:00", " 12:30", "\\t12:30", "+12:30", "GMT12:30", "1GMT2:30",
    "12:30 Europe/Paris", "\\u00312:30", "TGMT12:30",
]  # fmt: skip


@WAYS
def test_a_time_without_a_date_is_malformed(spark: SparkSession, way: dict[str, str]) -> None:
    texts = [f'{{"text": "a", "at": "{time}"}}' for time in TIMES] + ["{'at': '12:30'}", '{"at": "12:30", "tex']
    nested = [f'{{"seen": ["2024-01-02T03:04:05Z", null, "{time}"]}}' for time in TIMES]
    for ddl, records in ((DDL, texts), (NESTED, nested)):
        assert malformed(spark, way, records, ddl) == records


@WAYS
def test_other_records_with_times_are_read_as_spark_reads_them(spark: SparkSession, way: dict[str, str]) -> None:
    times = [
        '"2024"', '" 2024-01-02"', '"2024-01-02 12:30"', '"2024-01-02T12:30:15.5+01:00"', '"-2024-01-02"', '"+2024-01-02"',
        '"2024-01-02GMT"', "5", "-5", "null", '"2024-01"', '"2024-01-02T12:30 Europe/Paris"', '"at 12:30"',
    ]  # fmt: skip
    texts = [f'{{"text": "12:30", "odd name": "T1:2", "at": {time}}}' for time in times]
    good = share_of_good(spark, way, [text.encode() for text in texts], DDL)
    assert 0.7 < good < 1


HALF_DDL = (
    "text string, other string, tags array<string>, counts map<string,int>, place struct<name: string>, any variant, "
    "number int, day date, plain string collate UTF8_LCASE"
)
HALVES = [
    "\\ud800", "\\uDFFF", "a\\uDBFFb", "\\udc00\\ud800", "\\ud83d\\\\ude00", "\\ud83d\\u0041", "\\\\\\ud83d", "\U0001f600\\ude00",
    "\\\\ud83d\\ude00",
]  # fmt: skip
HALF_PLACES = [
    '{{"text": "{}"}}', '{{"number": 1, "other": "x{}"}}', '{{"tags": ["a", null, "{}"]}}', '{{"counts": {{"{}": 1}}}}',
    '{{"counts": {{"a": 1, "b{}": null}}}}', '{{"place": {{"name": "{}"}}}}', '{{"any": "{}"}}', '{{"any": {{"{}": 1}}}}',
    '{{"any": [1, {{"a": ["{}"]}}]}}', '{{"plain": "{}"}}', "{{'text': '{}'}}", '{{"text": "{}", "text": "a"}}', '{{"te\\u0078t": "{}"}}',
]  # fmt: skip
# is what Spark makes of it
WHOLE = [
    '{"text": "\\ud83d\\ude00"}', '{"text": "\\uD83D\\uDE00\\uD83D\\uDE00", "other": "\\\\ud800"}', '{"text": "\\\\\\\\ud800"}',
    '{"more": "\\ud800", "text": "a"}', '{"more": {"\\ud800": ["\\ud800"]}, "text": "a"}', '{"\\ud800": 1, "text": "a"}',
    '{"day": "2024-01-02T\\ud800"}', '{"number": 1} "\\ud800"', '{"counts": {"\\ud83d\\ude00": 1}}', '{"tags": ["\\ud83d\\ude00"]}',
    '{"place": {"more": "\\ud800", "name": "a"}}', '{"text": "?", "other": "\\u003f \\uE000 \\uD7FF \\ufffd"}', '{"_corrupt": "\\ud800"}',
    # of another type, as without it
    '{"number": "\\ud800"}', '{"text": {"a": "\\ud800"}}', '{"tags": "\\ud800"}', '{"place": {"name": "\\ud80"}}', '{"text": "\\ud800',
    '["\\ud800"]', '"\\ud800"',
]  # fmt: skip


@WAYS
@pytest.mark.parametrize("place", HALF_PLACES)
def test_a_text_or_a_key_with_half_of_a_surrogate_pair_is_malformed(
    spark: SparkSession, way: dict[str, str], place: str
) -> None:
    texts = [place.format(half) for half in HALVES]
    assert malformed(spark, way, texts, HALF_DDL) == texts


@WAYS
def test_other_records_with_surrogates_are_read_as_spark_reads_them(spark: SparkSession, way: dict[str, str]) -> None:
    assert malformed(spark, way, WHOLE[:13], HALF_DDL) == [None] * 13
    with configured(spark, way):
        frame = spark.createDataFrame([(bytearray(text.encode()),) for text in WHOLE], "value binary").coalesce(1)
        both = compared(frame, ddl_columns(HALF_DDL))
        ours, theirs = (F.to_json(F.col(f"{side}")) for side in ("ours", "theirs"))
        assert both.where(~ours.eqNullSafe(theirs)).select("value", ours, theirs).take(3) == []


ODD_SCHEMAS: dict[str, str | StructType] = {
    "not null": "text string NOT NULL, whole bigint NOT NULL, price decimal(18,0) NOT NULL",
    "fractions": "price decimal(5,5), share decimal(1,0), real decimal(10,2)",
    "another type": "text array<string>, whole struct<a: bigint>, real float",
    "a part of another type": "text array<float>, more map<string,float>, whole struct<a: float>",
    "parts that must be there": StructType(
        [
            StructField("text", ArrayType(StringType(), containsNull=False)),
            StructField("more", MapType(StringType(), IntegerType(), valueContainsNull=False)),
            StructField("whole", StructType([StructField("a", IntegerType(), nullable=False)]), nullable=False),
        ]
    ),
    "no name": StructType([StructField("", StringType()), StructField("text", StringType())]),
    "no fields": StructType([]),
    "62 fields": ", ".join([DDL, *(f"f{number} int" for number in range(50))]),
    "63 fields": ", ".join([DDL, *(f"f{number} int" for number in range(51))]),
}


@pytest.mark.parametrize("schema", ODD_SCHEMAS.values(), ids=list(ODD_SCHEMAS))
def test_an_odd_schema_is_read_as_spark_reads_it(spark: SparkSession, schema: str | StructType) -> None:
    fields = ddl_columns(schema) if isinstance(schema, str) else schema
    chance = random.Random(SEED)
    records = [record(chance) for _ in range(2_000)]
    records += [damaged(chance, nested(chance, fields, odd=0.05)) for _ in range(2_000)]
    frame = spark.createDataFrame([(bytearray(each),) for each in records], "value binary").coalesce(1)
    assert differ(compared(frame, fields)) == []


@pytest.mark.parametrize("kind", [MapType(IntegerType(), StringType()), VarcharType(5)], ids=str)
def test_a_type_that_json_does_not_have_is_refused(spark: SparkSession, kind: DataType) -> None:
    frame = spark.createDataFrame([("{}",)], "value string")
    with pytest.raises(AnalysisException):
        frame.select(from_json(F.col("value"), StructType([StructField("text", kind)]), CORRUPT))


@pytest.mark.parametrize("properties", [COMPILED, INTERPRETED])
def test_the_same_bytes_are_utf_8_as_for_spark(spark: SparkSession, properties: dict[str, str]) -> None:
    rng = random.Random(7)
    parts = [b"plain ascii", b"12345678", b"", b"a", "ä".encode(), "€".encode(), "😀".encode(), b"\x80", b"\xc3", b"\xe2\x82",
             b"\xf0\x9f", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"\xff", b"\x00", b"\x7f"]  # fmt: skip
    texts = [None, b"", *(b"".join(rng.choices(parts, k=rng.randint(1, 6))) for _ in range(3_000))]
    with configured(spark, properties):
        read = spark.createDataFrame([(text,) for text in texts], "bytes binary")
        found = read.select(is_utf8(F.col("bytes")), F.is_valid_utf8(F.col("bytes").cast("string"))).collect()
    assert [ours for ours, _ in found] == [theirs for _, theirs in found]
    assert {ours for ours, _ in found} == {None, True, False}
